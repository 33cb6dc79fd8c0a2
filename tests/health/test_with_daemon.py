"""`commwatch healthcheck` beside a daemon, each a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from commwatch.diagnosis.health.counts import count_unknown, read_counts
from support.daemon import command, environment, running
from support.waiting import PATIENCE_SECONDS


def test_a_simulated_daemon_is_unknown_and_exposes_what_was_counted(tmp_path: Path) -> None:
    """The count of earlier checks is on the daemon's page."""
    preset = ("--simulate", "a10x2")
    state = tmp_path / "state"
    own = state / "simulated-a10x2"
    own.mkdir(parents=True)
    count_unknown(own, "no_daemon")

    with running(tmp_path, *preset, state=state) as daemon:
        exposed = daemon.value("healthcheck_unknown_total", reason="no_daemon")
        done = command("healthcheck", *preset, "--path.state", str(state), "--slurm", "--drain", "--json")

    answer = json.loads(done.stdout)
    assert exposed == 1
    assert (done.returncode, answer["verdict"], answer["because"]) == (0, "Unknown", "simulated")
    assert answer["drain"] is None
    assert read_counts(own) == {"no_daemon": 1, "simulated": 1}


def test_other_commands_do_not_load_the_check() -> None:
    """The daemon builds the same command line and must stay small."""
    code = (
        "import sys; from commwatch.__main__ import build_parser; build_parser(); "
        "print([name for name in sys.modules if name.startswith('commwatch.diagnosis.health')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        text=True,
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    assert done.stdout.strip() == "[]"
