"""What every simulated node exposes, held against recorded pages; ``--update-golden`` records them again."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection
from pathlib import Path

import pytest

from commwatch.simulation.presets import PRESETS
from commwatch_exporters.catalogue import CATALOGUE, OPT_IN
from commwatch_exporters.prometheus import Format, render
from commwatch_exporters.snapshot import Snapshot
from support.waiting import PATIENCE_SECONDS
from support.whole_node import whole_node

GOLDEN = Path(__file__).parents[1] / "golden"
WITH_OPT_IN = ("b200x8", "h100x8ndr")
_OTHER_GPUS = re.compile(r'(gpu|peer)="[1-9]"')


def page(snapshot: Snapshot, families: Collection[str]) -> str:
    """The lines of a page in the order of the catalogue, those of the first GPU only: the others look alike."""
    lines = [
        line
        for family in families
        for block in snapshot.family_blocks(family)
        for line in block.text(family).splitlines()
        if not _OTHER_GPUS.search(line)
    ]
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_a_page_is_as_recorded(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A healthy node an hour after its boot, read twice, exposes what was recorded; the clock stands still."""
    with whole_node(preset, tmp_path, monkeypatch) as node:
        text = page(node.snapshot(), CATALOGUE)

    held_against(text, preset, request)


@pytest.mark.parametrize("preset", WITH_OPT_IN)
def test_what_is_asked_for_is_as_recorded(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The metrics that are exposed only where they are asked for, of a node that has most of them."""
    with whole_node(preset, tmp_path, monkeypatch, sorted(OPT_IN)) as node:
        text = page(node.snapshot(), [name for name in CATALOGUE if name in OPT_IN])

    held_against(text, f"{preset}-opt-in", request)


def held_against(text: str, name: str, request: pytest.FixtureRequest) -> None:
    """Compare a page with the recorded one, or record it."""
    file = GOLDEN / f"{name}.txt"
    if request.config.getoption("--update-golden"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), f"if this is meant: pytest {Path(__file__).name} --update-golden"


def test_every_page_is_of_a_preset() -> None:
    """No recorded page is left behind by a preset that is gone."""
    assert {file.stem for file in GOLDEN.glob("*.txt")} == {*PRESETS, *(f"{preset}-opt-in" for preset in WITH_OPT_IN)}


@pytest.mark.prometheus
@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_promtool_has_nothing_to_say_of_a_page(preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``promtool check metrics`` exits 0 on the page of every preset, with everything that may be asked for."""
    with whole_node(preset, tmp_path, monkeypatch, sorted(OPT_IN)) as node:
        page = render(node.snapshot(), Format.TEXT)

    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, timeout=PATIENCE_SECONDS)

    assert (done.returncode, done.stderr.decode()) == (0, "")
