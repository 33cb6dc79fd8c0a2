"""State files with any one value replaced: the daemon starts, no rule fails, and no number goes out of range."""

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


def _trouble(kept: Path, folder: Path, file: str, document: Any) -> str:
    """What goes wrong in a daemon that finds this document among its state files; empty where nothing does."""
    shutil.copytree(kept, folder / "state" / kept.name)
    (folder / "state" / kept.name / file).write_text(json.dumps(document), encoding="utf-8")
    try:
        with pytest.MonkeyPatch.context() as patched, rehearsed(PRESET, folder, patched, FAULTS, JOB_LOG) as daemon:
            daemon.time = 60.0 * END_MINUTES
            with capture_logs():
                daemon.until(END_MINUTES + 1)
                daemon.probe()
                daemon.save()
            if daemon.verdict.failing_rules:
                return f"rules fail: {sorted(daemon.verdict.failing_rules)}"
            values = [value or 0 for block in daemon.snapshot().blocks for value in block.values]
            return "" if all(abs(one) <= LARGEST_NUMBER for one in values) else f"out of range: {max(values)}"
    except Exception as error:
        return repr(error)
    finally:
        shutil.rmtree(folder)


def test_any_one_wrong_value(kept: Path, tmp_path: Path) -> None:
    """Values that are huge, of another kind or negative: each is believed harmlessly, or its file is set aside."""
    draw = random.Random(SEED)  # noqa: S311  no secret
    documents = {file.name: json.loads(file.read_text(encoding="utf-8")) for file in sorted(kept.glob("*.json"))}
    assert len(documents) >= 8, sorted(documents)
    places = {name: list(_places(document)) for name, document in documents.items()}
    found = []
    for case in range(CASES):
        name = draw.choice(sorted(documents))
        way, wrong = draw.choice(places[name]), draw.choice(WRONG)
        document = json.loads((kept / name).read_text(encoding="utf-8"))
        if trouble := _trouble(kept, tmp_path / str(case), name, _with(document, way, wrong)):
            found.append(f"{name} {way} = {wrong!s:.30}: {trouble:.200}")

    assert not found, "\n".join(found)
