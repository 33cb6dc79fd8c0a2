"""What every simulated node exposes is what was recorded, in any order; ``--update-golden`` records it again."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client import Metric as Family

from commwatch.config.metric_profile import unexported
from commwatch.config.settings import Metrics
from commwatch_exporters.catalogue import CATALOGUE, OPT_IN, SECTIONS
from commwatch_exporters.metrics_page import MetricsPage
from commwatch_exporters.node_collector import Format
from commwatch_exporters.snapshot import Snapshot
from commwatch_rehearsal.simulation.presets import PRESETS
from support.pages import asked, families_of, first_gpu_lines, page_of, samples
from support.passes import in_one_pass
from support.simulated_daemon import whole_node
from support.waiting import PATIENCE_SECONDS

GOLDEN = Path(__file__).parents[1] / "golden"
WITH_OPT_IN = ("b200x8", "h100x8ndr")
OF_ALL_METRICS = ("a100x4", "b200x8", "h100x8ndr")
"""Between them they expose each metric that any preset does."""


class Exposed(NamedTuple):
    """What a healthy node exposes an hour after its boot, read twice."""

    snapshot: Snapshot
    registry: CollectorRegistry
    """The daemon's own metrics."""


Expose = Callable[..., Exposed]


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> Expose:
    """``exposed(preset, opt_in=())``, with the metrics that are asked for; each node is read once for all tests."""

    @cache
    def expose(preset: str, opt_in: tuple[str, ...] = ()) -> Exposed:
        with (
            pytest.MonkeyPatch.context() as patched,
            whole_node(preset, tmp_path_factory.mktemp(preset), patched, opt_in) as node,
        ):
            return Exposed(node.snapshot(), node.instruments.registry)

    return expose


ALL = tuple(sorted(OPT_IN))


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_a_page_is_as_recorded(preset: str, exposed: Expose, request: pytest.FixtureRequest) -> None:
    """A healthy node exposes what was recorded; the clock does not move."""
    held_against(first_gpu_lines(exposed(preset).snapshot), preset, request)


@pytest.mark.parametrize("preset", WITH_OPT_IN)
def test_what_is_asked_for_is_as_recorded(preset: str, exposed: Expose, request: pytest.FixtureRequest) -> None:
    """The metrics that are exposed only where they are asked for, of a node that has most of them."""
    held_against(first_gpu_lines(exposed(preset, ALL).snapshot, OPT_IN), f"{preset}-opt-in", request)


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


@in_one_pass("preset", OF_ALL_METRICS)
def test_the_page_has_the_samples_that_the_library_makes_of_its_registry(preset: str, exposed: Expose) -> None:
    """Names, types, help texts, units, labels and numbers, with everything that may be asked for, in both formats."""
    node = exposed(preset, ALL)
    page = MetricsPage(lambda: node.snapshot, node.registry)
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
@pytest.mark.parametrize("preset", OF_ALL_METRICS)
def test_promtool_has_nothing_to_say_of_a_page(preset: str, exposed: Expose) -> None:
    """``promtool check metrics`` exits 0 on the page, with everything that may be asked for."""
    page = page_of(exposed(preset, ALL).snapshot)

    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, timeout=PATIENCE_SECONDS)

    assert (done.returncode, done.stderr.decode()) == (0, "")


DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "series.md"
BUDGETS = {"h100x8": 4_500, "h100x8ndr": 4_500, "b200x8": 8_000}
CORE = "total, `core`"
OF_THE_DAEMON = 820
"""Room for the daemon's own metrics and the probes', which these pages do not have."""

INTRODUCTION = """\
# Series

The table has the number of series that a healthy simulated node exposes an hour after its boot. The daemon's own
metrics and those of the eight default probes add about 540 with two GPUs and 780 with eight (224 of them the pair
matrix). A probe between nodes adds eight for each rail and 13 for the node, a check 14. The budgets are 4,500 for eight
H100 with eight NDR ports and 8,000 for eight B200.

Metrics of many series that few need are left out unless `metrics.opt_in` names them; [metrics.md](metrics.md) marks
them. AER errors are exposed as totals, and by name once they are not 0. With `metrics.profile: core` the page has the
series of the shipped rules and dashboards; findings, the node's page and the API use the others all the same.

`pytest tests/end_to_end/test_golden_pages.py --update-golden` writes this page.

"""


def counts(snapshot: Snapshot) -> dict[str, int]:
    """Series by subject."""
    numbers = {
        title: {row.name: sum(1 for _ in snapshot.samples(row.name)) for row in rows if row.type != "histogram"}
        for title, rows in SECTIONS.items()
    }
    left_out = unexported(Metrics(profile="core"))
    core = sum(number for found in numbers.values() for name, number in found.items() if name not in left_out)
    return {**{title: sum(found.values()) for title, found in numbers.items()}, CORE: core}


def in_all(numbers: dict[str, int]) -> int:
    """The series of all subjects."""
    return sum(number for title, number in numbers.items() if title != CORE)


@in_one_pass("preset", sorted(BUDGETS))
def test_the_budget_holds(preset: str, exposed: Expose) -> None:
    """With room for what the daemon adds, no node exposes more than the design allows."""
    assert in_all(counts(exposed(preset).snapshot)) + OF_THE_DAEMON <= BUDGETS[preset]


def test_the_document_of_series_is_current(exposed: Expose, request: pytest.FixtureRequest) -> None:
    """docs/reference/series.md has the number of each subject and preset."""
    series = {preset: counts(exposed(preset).snapshot) for preset in PRESETS}
    presets = sorted(series)
    titles = [title for title in SECTIONS if any(series[preset][title] for preset in presets)]
    rows = [("subject", *presets), ("---", *("---:" for _ in presets))]
    rows += [(title, *(f"{series[preset][title]:,}" for preset in presets)) for title in titles]
    rows.append(("total, `standard`", *(f"{in_all(series[preset]):,}" for preset in presets)))
    rows.append((CORE, *(f"{series[preset][CORE]:,}" for preset in presets)))
    text = INTRODUCTION + "".join(f"| {' | '.join(row)} |\n" for row in rows)

    if request.config.getoption("--update-golden"):
        DOCUMENT.write_text(text, encoding="utf-8")
    assert text == DOCUMENT.read_text(encoding="utf-8")
