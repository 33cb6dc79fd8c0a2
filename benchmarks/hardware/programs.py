"""Sections that run what users run: a recording of the node, and the tests for machines with a GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys

from benchmarks.hardware.place import ROOT, CannotRun, Place, commwatch, report

RECORDED_SECONDS = 30.0
_MORE_SECONDS = 40.0
"""That a command may take beside the recording itself."""
_OUTCOME = re.compile(r"::(test_\S+).* (PASSED|FAILED|ERROR|SKIPPED)")
TORCH_PYTHON = "COMMWATCH_TEST_TORCH_PYTHON"
"""Environment variable of ``tests/hardware``: the interpreter that has torch."""


def recording(place: Place) -> None:
    """Record the node into ``node.cwrec``, list what the file holds, and read the topology from it."""
    file, seconds = place.out / "node.cwrec", max(1, round(RECORDED_SECONDS * place.pace))
    recorded = json.loads(_output(
        "record", "-o", str(file), "--for", f"{seconds}s", "--json", *place.node_arguments,
        "--path.state", str(place.out / "state"),
    ))  # fmt: skip
    report(
        recording_bytes=recorded["bytes"], recording_seconds=recorded["seconds"], recording_hung=recorded["hung"],
        recording_cpu_share=recorded["cpu_seconds"] / recorded["seconds"],
        recording_megabytes_per_minute=recorded["bytes"] / 1e6 * 60 / recorded["seconds"],
    )  # fmt: skip
    listed = json.loads(_output("record", "--list", str(file), "--json"))
    report(
        recording_answers=listed["answers"], recording_errors=listed["errors"],
        recording_functions=len(listed["functions"]), recording_files=len(listed["files"]),
        costliest_calls=[
            f"{cost['of']}: {cost['calls']} calls, {cost['seconds']:.4f} s, longest {cost['longest']:.4f} s"
            for cost in listed["costs"][:8]
        ],
    )  # fmt: skip
    state = str(place.out / "replayed")
    topology = json.loads(_output("topology", "--json", "--simulate", str(file), "--path.state", state))
    report(replayed_gpus=sum(len(node["gpus"]) for node in topology["nodes"]))


def _output(*arguments: str) -> str:
    done = subprocess.run(
        commwatch(*arguments), capture_output=True, text=True, timeout=RECORDED_SECONDS + _MORE_SECONDS
    )
    if done.returncode not in (0, 1) or not done.stdout:
        raise CannotRun(f"commwatch {arguments[0]} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


def suite(place: Place) -> None:
    """The tests of ``tests/hardware``; each outcome counts as soon as it is there."""
    missing = [name for name in ("pytest", "hypothesis") if importlib.util.find_spec(name) is None]
    if missing:
        raise CannotRun(f"{' and '.join(missing)} not installed; `make test` installs what the tests need")
    command = [
        sys.executable, "-m", "pytest", "tests/hardware", "-v", "-p", "no:xdist", "-p", "no:cacheprovider",
        f"--basetemp={place.out / 'pytest'}", "--color=no",
    ]  # fmt: skip
    environment = {**os.environ, TORCH_PYTHON: place.torch_python}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        found: dict[str, list[str]] = {"PASSED": [], "FAILED": [], "ERROR": [], "SKIPPED": []}
        for line in tests.stdout:
            print(line, end="", file=sys.stderr)  # into the section's log
            if match := _OUTCOME.search(line):
                found[match[2]].append(match[1])
                if match[2] != "SKIPPED":
                    report(tests_passed=len(found["PASSED"]), tests_failed=[*found["FAILED"], *found["ERROR"]])
    report(tests_skipped=len(found["SKIPPED"]))
    if not any(found[one] for one in ("PASSED", "FAILED", "ERROR")):
        raise CannotRun(f"pytest ended with {tests.returncode} and ran none of {len(found['SKIPPED'])} tests")
