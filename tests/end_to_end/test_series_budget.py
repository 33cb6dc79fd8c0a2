"""How many series a node exposes, by subject; docs/reference/series.md says it, and the budgets hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from commwatch.config.metric_profile import unexported
from commwatch.config.settings import Metrics
from commwatch_exporters.catalogue import SECTIONS
from commwatch_exporters.snapshot import Snapshot
from commwatch_rehearsal.simulation.presets import PRESETS
from support.simulated_daemon import whole_node

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "series.md"
BUDGETS = {"h100x8": 4_500, "h100x8ndr": 4_500, "b200x8": 8_000}
CORE = "all, with `metrics.profile: core`"
OF_THE_DAEMON = 900
"""Room for the daemon's own metrics and the probes', which these pages do not have."""

INTRODUCTION = """\
# Series

The table has the number of series that a healthy simulated node exposes an hour after its boot. The daemon's own
metrics and those of the eight default probes add about 540 with two GPUs and 780 with eight (224 of them the pair
matrix). A run between nodes adds eight for each rail and about twenty for the node. The budgets are 4,500 for eight
H100 with eight NDR ports and 8,000 for eight B200.

Metrics of many series that few need are left out unless `metrics.opt_in` names them; [metrics.md](metrics.md) marks
them. AER errors are exposed as totals, and by name once they are not 0. With `metrics.profile: core` the page has the
series of the shipped rules and dashboards; findings, the node's page and the API use the others all the same.

`pytest tests/end_to_end/test_series_budget.py --update-golden` writes this page.

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


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    """Series by preset and subject."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        for preset in PRESETS:
            with whole_node(preset, tmp_path_factory.mktemp(preset), patch) as node:
                found[preset] = counts(node.snapshot())
    return found


@pytest.mark.parametrize("preset", sorted(BUDGETS))
def test_the_budget_holds(preset: str, series: dict[str, dict[str, int]]) -> None:
    """With room for what the daemon adds, no node exposes more than the design allows."""
    assert in_all(series[preset]) + OF_THE_DAEMON <= BUDGETS[preset]


def test_the_document_is_current(series: dict[str, dict[str, int]], request: pytest.FixtureRequest) -> None:
    """docs/reference/series.md has the number of each subject and preset."""
    presets = sorted(series)
    titles = [title for title in SECTIONS if any(series[preset][title] for preset in presets)]
    rows = [("subject", *presets), ("---", *("---:" for _ in presets))]
    rows += [(title, *(f"{series[preset][title]:,}" for preset in presets)) for title in titles]
    rows.append(("all", *(f"{in_all(series[preset]):,}" for preset in presets)))
    rows.append((CORE, *(f"{series[preset][CORE]:,}" for preset in presets)))
    text = INTRODUCTION + "".join(f"| {' | '.join(row)} |\n" for row in rows)

    if request.config.getoption("--update-golden"):
        DOCUMENT.write_text(text, encoding="utf-8")
    assert text == DOCUMENT.read_text(encoding="utf-8")
