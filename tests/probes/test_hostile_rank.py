"""A rank process that has become hostile, as a compromised torch would make it: what the daemon takes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commwatch.probes.cycle.launch import Launcher
from commwatch.probes.cycle.nccl_notes import MOST_SETTINGS, MOST_WARNINGS, read_notes
from commwatch.probes.plan import Failed
from probes.cycles import cycle_plan, deadlines, failure, run

GARBLED = "the rank wrote something that is no event"
GOOD = {"timings": [[0.001], [0.01]], "torch_version": "2.13.0+cu126"}


pytestmark = pytest.mark.usefixtures("nothing_left")


def failure_of(temporary: Path, script: str, **limits: float) -> Failed:
    """What comes of one rank that is this shell script, which gets the plan first."""
    command = ("sh", "-c", f"read plan; {script}")
    return failure(
        Launcher(rank_command=command, temporary=temporary), cycle_plan(ranks=1, deadlines=deadlines(**limits))
    )


def said(event: Any) -> str:
    """A script that says one event, and waits for its end."""
    return f"echo '{event if isinstance(event, str) else json.dumps(event)}'; read end"


SCRIPTS = [
    # Neither a time out of range nor a version that would be another label each time becomes a metric.
    *(
        said({"type": "result", "result": GOOD | result}).replace("\n", "\\n")
        for result in (
            {"timings": [[-1.0], [0.01]]},
            {"timings": [[0.0], [0.01]]},
            {"timings": [[1e7], [0.01]]},
            {"timings": [["fast"], [0.01]]},
            {"nccl_version": '2.27.5" } 1\nup 0'},
            {"nccl_version": "9" * 65},
            {"torch_version": "made up"},
        )
    ),
    # A rank may say four things, each of a closed form; nothing else is understood, or run.
    said('{"type":"result","result":{"timings":[[1e999],[1]]}}'),
    said('{"type":"phase","phase":"own"}'),
    said('{"type":"gate","gate":"1"}'),
    said('{"type":"error","reason":"own","detail":""}'),
    said('{"type":"run","command":"id"}'),
    said("[" * 5000),
    said("cposix"),
    # A line without end is given up after a megabyte or two, and the rest is not taken.
    "head -c 100000000 /dev/zero; read end",
    # One that repeats itself or goes back, and so could go on for ever.
    """yes '{"type":"phase","phase":"start"}'""",
    """yes '{"type":"phase","phase":"setup"}'""",
    """yes '{"type":"gate","gate":0}'""",
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script[:60])
def test_what_no_rank_of_ours_says_ends_the_cycle(tmp_path: Path, script: str) -> None:
    """As a crash; the daemon takes nothing of it."""
    found = failure_of(tmp_path, script)

    assert (found.reason, GARBLED in found.detail) == ("crashed", True)


def test_the_words_of_a_rank_do_no_harm(tmp_path: Path) -> None:
    """They are cut, and a terminal shows them as text."""
    event = {"type": "error", "reason": "nccl_error", "detail": "\u001b[2Jgone\r" + "x" * 500_000}
    (tmp_path / "event").write_text(json.dumps(event) + "\n")
    found = failure_of(tmp_path, f"cat {tmp_path}/event; read end")

    assert "?[2Jgone?" in found.detail
    assert found.detail.isprintable()
    assert len(found.detail) < 2000


def test_standard_error_is_bounded_memory(tmp_path: Path) -> None:
    """What a rank writes there beyond 64 MiB gets an error; its last words are those before."""
    found = failure_of(tmp_path, "printf 'first\\033\nlast words' >&2; exit 3")
    assert found.detail.endswith("ended with status 3: first? | last words")
    full = failure_of(tmp_path, "head -c 80000000 /dev/zero >&2 && exit 4; exit 5")
    assert "ended with status 5" in full.detail


def test_files_of_nccl_in_the_private_folder_are_read_in_bounded_time(tmp_path: Path) -> None:
    """Thousands of settings, values and warnings; a link to another file is not followed."""
    head = "node1:41:77 [0] NCCL INFO "
    lines = [f"{head}NCCL_ALGO set by environment to \x1b{number}" for number in range(3000)]
    lines += [f"{head}NCCL_OF_{number} set by environment to 1" for number in range(3000)]
    lines += [f"{head}Channel 00/0 : 0[0] -> 1[1] via P2P/OWN{number}" for number in range(1000)]
    lines += [f"node1:41:77 [0] init.cc:1 NCCL WARN \x1b[2J {number}" for number in range(1000)]
    (tmp_path / "rank0.nccl").write_text("\n".join(lines))
    (tmp_path / "rank99.nccl").symlink_to("/etc/passwd")

    notes = read_notes(tmp_path)

    assert len(notes.settings) <= MOST_SETTINGS
    assert max(map(len, notes.settings.values())) < 200
    assert "\x1b" not in str(notes)
    assert len(notes.warnings) <= MOST_WARNINGS
    assert "root" not in str(notes)


def test_a_good_rank_is_understood(tmp_path: Path) -> None:
    """The same forms with what a rank of ours says are a result."""
    gate, result = {"type": "phase", "phase": "measure"}, {"type": "result", "result": GOOD}
    script = f"echo '{json.dumps(gate)}'; echo '{json.dumps(result)}'; read end"
    command = ("sh", "-c", f"read plan; {script}")
    found, _ = run(Launcher(rank_command=command, temporary=tmp_path), cycle_plan(ranks=1))

    assert not isinstance(found, Failed)
