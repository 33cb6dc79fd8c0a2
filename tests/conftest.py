"""Options and profiles of the suite; leaves out the tests whose programs are not here, and says so."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from commwatch.probes.cycle import process

# Collecting makes no garbage that is worth a search; what it makes is there until the end.
gc.disable()

# No example has a deadline, and none is too slow to be made: a busy machine is no defect.
# The examples are the same each time, so that two runs of the same code agree; new ones are tried on request.
settings.register_profile(
    "usual",
    deadline=None,
    derandomize=True,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("usual"), derandomize=False, max_examples=1000)
settings.load_profile("usual")

# Thousands of small files are written by tests and by the commands that they start; in memory where there is room.
# A disk makes a test wait, and a new file costs eight times the CPU time.
MEMORY = Path("/dev/shm")
if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4 * 2**30:
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

PROGRAMS = {
    "prometheus": ("prometheus", "promtool", "amtool"),
    "chromium": ("chromium",),
    "systemd": ("systemd-analyze",),
    "openssl": ("openssl",),
    "namespaces": ("ip",),
    "node_exporter": ("prometheus-node-exporter",),
    "slurm": ("slurmctld", "slurmd", "srun", "munged", "nsenter"),
    "shellcheck": ("shellcheck",),
}


def missing(marker: str) -> str:
    """What a marked test needs and this machine lacks; empty if it can run."""
    absent = [name for name in PROGRAMS.get(marker, ()) if shutil.which(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    if marker == "namespaces" and not namespaces_allowed():
        return "needs root, and a machine that allows network namespaces"
    return ""


@cache
def namespaces_allowed() -> bool:
    """Whether a namespace can be made; containers often forbid it even to root."""
    return os.geteuid() == 0 and subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode == 0


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--update-golden`` writes the recorded pages again, to be read in the diff."""
    parser.addoption("--update-golden", action="store_true", help="write tests/golden again instead of comparing")


LONGEST = (
    "alerts/test_rules", "daemon/test_daemon", "cluster/test_probe", "probes/test_command",
    "probes/test_torch", "workers/test_reader", "alerts/test_paging", "probes/test_scheduled_cycles",
    "end_to_end/test_faces", "core/test_judgement", "core/test_hostile_daemon", "nvml/test_every_error",
    "probes/test_simulated", "probes/test_launch", "topology/test_command", "end_to_end", "probes/test_kills",
    "top/test_terminal", "probes",
)  # fmt: skip
"""Files whose tests begin first, so that no process has one of them left when the others have ended."""


@cache
def _place(file: str) -> int:
    return next((place for place, name in enumerate(LONGEST) if f"tests/{name}" in file), len(LONGEST))


def pytest_collection_finish() -> None:
    """What the modules of all tests hold is there until the end: the collector need not look at it."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def no_rank_stands_behind_the_tests() -> Iterator[None]:
    """A rank lets all else on the node go first while it starts: here that would be the other tests, to their end."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(process, "let_others_go_first", lambda pid: None)
        yield


@pytest.fixture(autouse=True)
def the_log_of_before() -> Iterator[None]:
    """It comes back: a command that logs would write for later tests to standard error as its own test had it."""
    root = logging.getLogger()
    handlers, level, known = root.handlers[:], root.level, structlog.get_config()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**known)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long come first; what cannot run is skipped with its reason, which the last lines list."""
    items.sort(key=lambda item: _place(item.nodeid.partition("::")[0]))
    for item in items:
        for marker in {mark.name for mark in item.iter_markers()} & PROGRAMS.keys():
            if reason := missing(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was left out and why, in one line each."""
    reasons = Counter(
        str(report.longrepr[2]).removeprefix("Skipped: ")
        for report in terminalreporter.getreports("skipped")
        if isinstance(report.longrepr, tuple)
    )
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"left out: {count} tests, {reason}")
    if not any("proof" in argument for argument in terminalreporter.config.args):
        terminalreporter.write_line("left out: tests/proof and what else plays for minutes; `make proof` plays it")
