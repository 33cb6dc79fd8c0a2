"""The scripts of packaging/slurm and packaging/node-problem-detector, with stand-ins and beside a real daemon."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from health.reports import daemon_saying, document
from health.scontrol import NODE, Scontrol, shown
from support.daemon import ROOT, environment, running
from support.waiting import PATIENCE_SECONDS

SLURM, DETECTOR = ROOT / "packaging/slurm", ROOT / "packaging/node-problem-detector"
SCRIPTS = sorted([*SLURM.iterdir(), *DETECTOR.glob("*.sh")])
PROLOG, EPILOG, PERIODIC = SLURM / "prolog.sh", SLURM / "epilog.sh", SLURM / "health-check.sh"
CHECK = DETECTOR / "check-commwatch.sh"


class Machine:
    """Programs that a script finds before all others."""

    def __init__(self, folder: Path) -> None:
        self.programs = folder / "programs"
        self.programs.mkdir()

    def put(self, name: str, text: str) -> None:
        """A program of this name that is this shell script."""
        (self.programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.programs / name).chmod(0o755)

    def commwatch(self, *options: str) -> None:
        """The program itself, with further options; it may take as long as it does on a busy machine."""
        self.put("timeout", 'while [ "${1#-}" != "$1" ]; do shift 2; done; shift; exec "$@"')
        self.put("commwatch", f'exec {shlex.join([sys.executable, "-m", "commwatch"])} "$@" {shlex.join(options)}')

    def run(self, script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a script to its end, whose own search path comes after our programs."""
        text = script.read_text().replace("PATH=", f"PATH={self.programs}:", 1)
        return subprocess.run(
            ["/bin/sh", "-c", text, str(script), *arguments],
            text=True, capture_output=True, check=False, timeout=PATIENCE_SECONDS,
            env={**environment(), "PATH": os.defpath},
        )  # fmt: skip


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Without commwatch."""
    return Machine(tmp_path)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_scripts_can_be_run_and_are_clean(script: Path) -> None:
    """By any shell of the standard; shellcheck has nothing to say where it is installed."""
    assert os.access(script, os.X_OK)
    for tool in (["/bin/sh", "-n"], ["shellcheck"]):
        if shutil.which(tool[0]):
            done = subprocess.run([*tool, script], text=True, capture_output=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr


VERDICTS = {
    "problem": ("echo 'Critical: NVLink is down'; exit 1", 1, 1),
    "ok": ("echo 'OK: nothing'; exit 0", 0, 0),
    "warning": ("echo 'Warning: it is slow'; exit 0", 0, 0),
    "unknown": ("echo 'Unknown: stale'; exit 0", 0, 2),
    "a Python that does not start": ("echo 'Traceback (most recent call last)' >&2; exit 1", 0, 2),
    "killed": ("echo 'Critical: cut off'; kill -9 $$", 0, 1),
    "wrong use": ("exit 2", 0, 2),
    "not installed": ("exit 127", 0, 2),
}


@pytest.mark.parametrize(("commwatch", "of_prolog", "of_plugin"), VERDICTS.values(), ids=VERDICTS)
def test_only_a_verdict_is_a_problem(machine: Machine, commwatch: str, of_prolog: int, of_plugin: int) -> None:
    """A prolog that fails drains the node, so what is not known passes; a detector has a code for it."""
    machine.put("commwatch", commwatch)

    assert machine.run(PROLOG).returncode == of_prolog
    assert machine.run(CHECK, "Critical").returncode == of_plugin


def test_the_prolog_asks_and_then_makes_probes_yield(machine: Machine, tmp_path: Path) -> None:
    """In this order: a node that gets no job need not yield; a hold that cannot be written keeps no job away."""
    asked = tmp_path / "asked"
    machine.put("commwatch", f'echo "$@" >> {asked}; [ "$1" = yield ] && exit 2; echo "OK: nothing"')

    assert machine.run(PROLOG).returncode == 0
    assert asked.read_text() == "healthcheck --slurm\nyield --wait 5s --hold 10m\n"


@pytest.mark.parametrize("script", [PERIODIC, EPILOG], ids=lambda script: script.name)
def test_a_fault_of_the_drain_list_drains_and_the_script_never_fails(
    machine: Machine, tmp_path: Path, script: Path
) -> None:
    """commwatch itself, with stand-ins of a daemon and of scontrol."""
    slurm, state = Scontrol(tmp_path, shown("ALLOCATED+COMPLETING")), tmp_path / "state"
    settings = tmp_path / "commwatch.yaml"
    settings.write_text(json.dumps({"probes": {"slurm_node": NODE}, "paths": {"sysfs": str(tmp_path)}}))
    machine.commwatch("--path.state", str(state), "--config.file", str(settings))
    shutil.copy(slurm.programs / "scontrol", machine.programs)

    with daemon_saying(state, document("nvlink_down")):
        done = machine.run(script)

    assert (done.returncode, done.stdout) == (
        0,
        f"Critical: NVLink is down: GPU0 link 3 (0000:17:00.0/3); node {NODE} is drained\n",
    )
    reason = "commwatch: nvlink_down: GPU0 link 3 (0000:17:00.0/3)"
    assert slurm.updates == [f"update NodeName={NODE} State=DRAIN Reason={reason}"]


def test_a_warning_is_an_event_and_no_condition(machine: Machine, tmp_path: Path) -> None:
    """The two rules of the detector differ by their argument alone."""
    state = tmp_path / "state"
    machine.commwatch("--path.state", str(state))

    with daemon_saying(state, document("nvlink_replays")):
        codes = {word: machine.run(CHECK, word).returncode for word in ("Critical", "Warning")}

    assert codes == {"Critical": 0, "Warning": 1}


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    """Options that reach a daemon on a simulated node."""
    folder = tmp_path_factory.mktemp("simulated")
    config = folder / "unprobed.yaml"
    config.write_text("probes: {enabled: false}\n")
    with running(folder, "--simulate", "a10x2", "--config.file", str(config)) as daemon:
        yield ("--simulate", "a10x2", "--path.state", str(daemon.state))


def test_a_simulated_node_is_never_drained(machine: Machine, simulated: tuple[str, ...]) -> None:
    """Each script ends well beside a daemon, and the prolog has written its hold."""
    machine.commwatch(*simulated)

    done = {script: machine.run(script) for script in (PERIODIC, PROLOG, EPILOG)}
    detected = machine.run(CHECK, "Critical")

    assert {one.returncode for one in done.values()} == {0}
    assert all("Unknown: " in done[script].stdout for script in (PERIODIC, EPILOG))
    assert (detected.returncode, detected.stdout[:19]) == (2, "Unknown: the node i")
    assert "no probe" in done[PROLOG].stdout


def test_the_plugin_is_whole() -> None:
    """Each rule runs the shipped script in less than the detector's time; the permanent one sets its condition."""
    plugin = json.loads((DETECTOR / "commwatch.json").read_text())
    permanent, temporary = plugin["rules"]

    assert permanent["condition"] == plugin["conditions"][0]["type"]
    assert "condition" not in temporary
    assert [rule["args"] for rule in plugin["rules"]] == [["Critical"], ["Warning"]]
    assert {Path(rule["path"]).name for rule in plugin["rules"]} == {CHECK.name}
    assert {rule["timeout"] for rule in plugin["rules"]} == {plugin["pluginConfig"]["timeout"]} == {"10s"}
