"""Two members whose ranks are forked from a process that has imported torch; one of them is ended meanwhile."""

from __future__ import annotations

import signal
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from cluster.test_probe import end_second, started
from support.waiting import until


def forked_by(member: int) -> list[str]:
    """States of the nursery of a member, its ranks and their guards; all have its command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            words = (path / "cmdline").read_bytes().split(b"\0")
            if b"commwatch.probes.cycle.nursery" in words and words[-2] == str(member).encode():
                found.append((path / "stat").read_text().rpartition(") ")[2][0])
    return found


@pytest.mark.torch
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ranks_that_were_forked_end_with_their_member(tmp_path: Path, number: signal.Signals) -> None:
    """As those that it started itself; the other member has too few nodes then, and leaves nothing either."""
    members = [started(tmp_path, rank, "--backend", "gloo") for rank in (0, 1)]
    end_second(members, number, lambda: len(forked_by(members[1].pid)) >= 3)  # nursery, rank and guard
    until(lambda: not any(forked_by(one.pid) for one in members))
    until(lambda: not list(tmp_path.glob("commwatch-probe-*")))
