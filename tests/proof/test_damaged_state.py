"""State files that are damaged in six ways: the daemon starts, no rule fails, and no number goes out of range."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from commwatch.state.records import LARGEST_NUMBER
from support.rehearsed_daemon import rehearsed

PRESET = "h100x8ndr"
CASES = 500
SEED = 21
FAULTS = """
- {fault: xid, gpu: 1, xid: 79, at: 10m}
- {fault: nvlink_down, gpu: 2, link: 3, at: 20m}
"""
JOB_LOG = "\n".join(
    f"2026-01-01T10:{minute:02}:00 node1: NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory"
    for minute in range(5, 40)
)
WRONG: tuple[Any, ...] = (
    -1, 0, 0.5, 4e9, 253402300800.0, 1e18, 2**63, 2**64, 10**30, 1e300, -1e300, 10**400, True, None, "", "x", "\0",
    [], [0], {}, {"": 0},
)  # fmt: skip
"""What JSON can hold and a field may not."""
DAMAGES = ("value", "value", "value", "bits", "cut", "tail", "foreign")
END_MINUTES = 45.0


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state directory of a daemon that has probed, seen two faults and read a job's log."""
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patched, rehearsed(PRESET, folder, patched, FAULTS, JOB_LOG) as daemon:
        for minutes in (15.0, 30.0, END_MINUTES):
            daemon.until(minutes)
            daemon.probe()
        daemon.save()
        return daemon.state.path


def _places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Ways to each value of a document, the whole and its containers among them."""
    yield way
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield from _places(below, (*way, key))


def _with(document: Any, way: tuple[Any, ...], wrong: Any) -> Any:
    if not way:
        return wrong
    at = document
    for step in way[:-1]:
        at = at[step]
    at[way[-1]] = wrong
    return document


def _damaged(draw: random.Random, damage: str, content: bytes) -> tuple[bytes, str]:
    """A state file after a damage, and in words what was done to it."""
    if damage == "value":
        document = json.loads(content)
        way, wrong = draw.choice(list(_places(document))), draw.choice(WRONG)
        return json.dumps(_with(document, way, wrong)).encode(), f"{way} = {wrong!s:.30}"
    if damage == "foreign":  # of a version that names its fields otherwise and has others
        document = json.loads(content)
        named = {f"{name}_v2" if draw.random() < 0.3 else name: value for name, value in document.items()}
        return json.dumps({"version": 99, "schema": {"of": [1]}, **named}).encode(), f"{list(named)}"
    place = draw.randrange(len(content))
    if damage == "cut":
        return content[:place], f"after {place} bytes"
    if damage == "tail":  # as a file system leaves it that lost the last blocks, or gave those of another file
        return content[:place] + draw.choice((bytes(4096), draw.randbytes(4096), content)), f"from byte {place} on"
    flipped = bytearray(content)
    for _ in range(draw.randint(1, 8)):
        flipped[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    return bytes(flipped), f"{sum(a != b for a, b in zip(content, flipped, strict=True))} bytes"


def _is_object(content: bytes) -> bool:
    try:
        return isinstance(json.loads(content), dict)
    except (ValueError, RecursionError):
        return False


def _trouble(kept: Path, folder: Path, file: str, content: bytes) -> str:
    """What goes wrong in a daemon that finds this among its state files; empty where nothing does."""
    state = folder / "state" / kept.name
    shutil.copytree(kept, state)
    (state / file).write_bytes(content)
    try:
        with pytest.MonkeyPatch.context() as patched, rehearsed(PRESET, folder, patched, FAULTS, JOB_LOG) as daemon:
            daemon.time = 60.0 * END_MINUTES
            with capture_logs():
                daemon.until(END_MINUTES + 1)
                daemon.probe()
                daemon.save()
            if not _is_object(content) and not list(state.glob("*.damaged-*")):
                return "not set aside"
            if daemon.verdict.failing_rules:
                return f"rules fail: {sorted(daemon.verdict.failing_rules)}"
            values = [value or 0 for block in daemon.snapshot().blocks for value in block.values]
            return "" if all(abs(one) <= LARGEST_NUMBER for one in values) else f"out of range: {max(values)}"
    except Exception as error:
        return repr(error)
    finally:
        shutil.rmtree(folder)


def test_damaged_files(kept: Path, tmp_path: Path) -> None:
    """Values that are huge, of another kind or negative, flipped bits, lost ends, names of another version: what can be
    read is believed harmlessly, what cannot is set aside."""
    draw = random.Random(SEED)  # noqa: S311  no secret
    contents = {file.name: file.read_bytes() for file in sorted(kept.glob("*.json"))}
    assert len(contents) >= 8, sorted(contents)
    found = []
    for case in range(CASES):
        name, damage = draw.choice(sorted(contents)), draw.choice(DAMAGES)
        content, words = _damaged(draw, damage, contents[name])
        if trouble := _trouble(kept, tmp_path / str(case), name, content):
            found.append(f"{name} {damage} {words}: {trouble:.200}")

    assert not found, "\n".join(found)
