"""What every simulated node exposes is what was recorded, in any order; ``--update-golden`` records it again."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Iterable
from pathlib import Path

import pytest
from prometheus_client import Metric as Family

from commwatch_exporters.catalogue import CATALOGUE, OPT_IN, family_of
from commwatch_exporters.metrics_page import MetricsPage
from commwatch_exporters.negotiation import Format
from commwatch_exporters.snapshot import Snapshot
from commwatch_rehearsal.simulation.presets import PRESETS
from support.pages import asked, families_of, page_of
from support.simulated_daemon import whole_node
from support.waiting import PATIENCE_SECONDS

GOLDEN = Path(__file__).parents[1] / "golden"
WITH_OPT_IN = ("b200x8", "h100x8ndr")
_OTHER_GPUS = re.compile(r'(gpu|peer)="[1-9]"')


def lines_of(snapshot: Snapshot, families: Collection[str] = CATALOGUE) -> str:
    """The samples on the page of a node, those of the first GPU only: the others look alike."""
    return "".join(
        line
        for line in page_of(snapshot).decode().splitlines(keepends=True)
        if line.startswith("commwatch_")
        and family_of(line.partition(" ")[0].partition("{")[0]).name in families
        and not _OTHER_GPUS.search(line)
    )


def samples(lines: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Each series with its number: neither the order of the lines nor the way to write a number counts."""
    read = [one for family in families_of(lines, Format.TEXT) for one in family.samples]
    found = {(one.name, frozenset(one.labels.items())): one.value for one in read}
    assert len(found) == len(read), "a series stands twice on the page"
    return found


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_a_page_is_as_recorded(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A healthy node an hour after its boot, read twice, exposes what was recorded; the clock stands still."""
    with whole_node(preset, tmp_path, monkeypatch) as node:
        text = lines_of(node.snapshot())

    held_against(text, preset, request)


@pytest.mark.parametrize("preset", WITH_OPT_IN)
def test_what_is_asked_for_is_as_recorded(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The metrics that are exposed only where they are asked for, of a node that has most of them."""
    with whole_node(preset, tmp_path, monkeypatch, sorted(OPT_IN)) as node:
        text = lines_of(node.snapshot(), OPT_IN)

    held_against(text, f"{preset}-opt-in", request)


def held_against(text: str, name: str, request: pytest.FixtureRequest) -> None:
    """Compare a page with the recorded one, or record it."""
    file = GOLDEN / f"{name}.txt"
    if request.config.getoption("--update-golden"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    recorded, shown = samples(file.read_text(encoding="utf-8")), samples(text)
    assert recorded == shown, f"if this is meant: pytest {Path(__file__).name} --update-golden"


def test_every_page_is_of_a_preset() -> None:
    """No recorded page is left behind by a preset that is gone."""
    assert {file.stem for file in GOLDEN.glob("*.txt")} == {*PRESETS, *(f"{preset}-opt-in" for preset in WITH_OPT_IN)}


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_the_page_has_the_samples_that_the_library_makes_of_its_registry(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names, types, help texts, units, labels and numbers, with everything that may be asked for, in both formats."""
    with whole_node(preset, tmp_path, monkeypatch, sorted(OPT_IN)) as node:
        page = MetricsPage(node.snapshot, node.instruments.registry)
        for page_format in Format:
            shown = families_of(asked(page, page_format).decode(), page_format)
            library = families_of(page_format.encode(page.registry).decode(), page_format)

            assert described(shown) == described(library)
            assert sum(len(family.samples) for family in shown) > sum(1 for one in CATALOGUE)


def described(families: Iterable[Family]) -> dict[object, object]:
    """All that a page says, but for the use of this process, which goes on."""
    found: dict[object, object] = {}
    for family in families:
        assert family.name not in found
        found[family.name] = (family.type, family.documentation, family.unit)
        for sample in family.samples:
            series = (sample.name, frozenset(sample.labels.items()))
            assert series not in found
            found[series] = None if family.name.startswith("process_") else sample.value
    return found


@pytest.mark.prometheus
@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_promtool_has_nothing_to_say_of_a_page(preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``promtool check metrics`` exits 0 on the page of every preset, with everything that may be asked for."""
    with whole_node(preset, tmp_path, monkeypatch, sorted(OPT_IN)) as node:
        page = page_of(node.snapshot())

    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, timeout=PATIENCE_SECONDS)

    assert (done.returncode, done.stderr.decode()) == (0, "")
