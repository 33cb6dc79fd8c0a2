"""docs/using/probes.md against the code: what it lists is what there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

from commwatch.config.settings import DEFAULT_PROBES, Probe, Probes
from commwatch.config.thresholds import load_thresholds
from commwatch.jobs.logs.categories import SIDES
from commwatch.probes.cycle.process import ASK_SECONDS, TERM_SECONDS
from commwatch.probes.cycle.rank import EXIT_SECONDS
from commwatch.probes.gate.budget import (
    DAY_SECONDS,
    FIRST_CYCLE_SECONDS,
    SEARCH_SHARE,
    STEP_SECONDS,
    WINDOW_SECONDS,
    first_guess_seconds,
)
from commwatch.probes.gate.watch import CHECK_INTERVAL_SECONDS
from commwatch.probes.plan import Measure, YieldReason
from commwatch.probes.rank_plan import PHASES, FailureReason, SkipReason
from commwatch.probes.results.course import KEPT_RESULTS
from commwatch.probes.results.published import PUBLISHED
from commwatch.probes.schedule import (
    SOONEST_SECONDS,
    SUSPICIOUS_RETRIES_PER_HOUR,
    SUSPICIOUS_RETRY_SECONDS,
    TRY_AGAIN_SECONDS,
)
from commwatch.probes.workload import MIB, plan_cycle
from support.passes import in_one_pass

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/using/probes.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")
WORDS = " ".join(TEXT.split())

EIGHT_GPUS = tuple(f"GPU-{number}" for number in range(8))


def rows(first_heading: str) -> list[list[str]]:
    """The rows of the table whose first column is called so, as cells."""
    found: list[list[str]] = []
    inside = False
    for line in TEXT.splitlines():
        if line.startswith(f"| {first_heading} |"):
            inside = True
        elif inside and not line.startswith("|"):
            break
        elif inside:
            found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found[1:]  # without the line below the heading


def names(cell: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def first_column(heading: str) -> list[str]:
    """All names of a table's first column."""
    return [name for row in rows(heading) for name in names(row[0])]


@in_one_pass(
    "heading, literal",
    [
        ("failure reason", FailureReason),
        ("skip reason", SkipReason),
        ("yield reason", YieldReason),
        ("measure", Measure),
    ],
)
def test_a_table_lists_each_name_once(heading: str, literal: Any) -> None:
    """Every reason of the code has its meaning, and none that does not exist."""
    assert sorted(first_column(heading)) == sorted(get_args(literal))


def test_the_categories_and_their_sides_are_those_of_the_code() -> None:
    """One row may hold several categories of one side."""
    written = {name: row[1] for row in rows("category") for name in names(row[0])}

    assert written == dict(SIDES)


def test_the_phases_and_their_deadlines_are_the_defaults() -> None:
    """In the order in which a rank goes through them."""
    limits = Probes()
    table = rows("phase")

    assert tuple(name for row in table for name in names(row[0])) == PHASES
    for row in table[:-1]:
        (setting,) = names(row[2])
        assert row[2] == f"`{setting}`, {float(getattr(limits, setting)):g} s"
    assert table[-1][2] == f"{EXIT_SECONDS:g} s"


def test_the_default_schedule_is_that_of_the_configuration() -> None:
    """Name, interval and number of steps on a node with eight GPUs; each is named as its measure."""
    written = {name: row[1:] for row in rows("probe") for name in names(row[0])}

    assert written == {
        name: [
            {900.0: "15 min", 86400.0: "1 day"}[float(probe.interval)],
            str(len(plan_cycle(name, probe, Probes(), backend="nccl", devices=EIGHT_GPUS).steps)),
        ]
        for name, probe in DEFAULT_PROBES.items()
    }
    assert [name for name, probe in DEFAULT_PROBES.items() if probe.measure != name] == []


def test_the_estimate_of_a_day_is_worked_out_right() -> None:
    """What the budget assumes of a cycle, times cycles a day and eight GPUs; the sum, its share, and what is left."""
    limit = Probes().occupancy_limit
    day = {
        name: round(
            86400
            / float(probe.interval)
            * 8
            * first_guess_seconds(len(plan_cycle(name, probe, Probes(), backend="nccl", devices=EIGHT_GPUS).steps))
        )
        for name, probe in DEFAULT_PROBES.items()
    }
    # With one round of pairs in each.
    day["all_reduce"] += round(86400 / float(DEFAULT_PROBES["all_reduce"].interval) * 8 * STEP_SECONDS)
    total = sum(day.values())

    assert f"add up to {total} GPU seconds a day, {total / (86400 * 8) * 100:.2f} %" in WORDS
    assert f"{FIRST_CYCLE_SECONDS:g} s (2 to 4.5 s" in WORDS
    assert f"{STEP_SECONDS:g} s for each step" in WORDS
    others = total - day["all_reduce"]
    most = (
        ((1 - SEARCH_SHARE) * limit * 86400 * 8 - others) / 8 / (86400 / float(DEFAULT_PROBES["all_reduce"].interval))
    )
    assert f"takes more than {most:.1f} s" in WORDS


def test_the_sizes_are_the_defaults() -> None:
    """Of each measure, with nccl."""
    for row in rows("measure"):
        for measure in names(row[0]):
            probe = next((one for one in DEFAULT_PROBES.values() if one.measure == measure), Probe(measure=measure))  # type: ignore[arg-type]  # as written
            plan = plan_cycle(measure, probe, Probes(), backend="nccl", devices=EIGHT_GPUS)
            assert plan.latency_bytes == 0 or f"{plan.latency_bytes} B" in row[2]
            assert f"{plan.bandwidth_bytes // MIB} MiB" in row[2]


def test_the_published_results_are_those_of_the_code() -> None:
    """GPU models by the number of ranks."""
    eight, four = (", ".join(one.gpu for one in PUBLISHED if one.ranks == ranks) for ranks in (8, 4))

    assert f"8 GPUs ({eight}) or 4 ({four})" in WORDS


def test_numbers_in_the_text_are_those_of_the_code() -> None:
    """Each stands in a sentence of its own; a changed constant must change the sentence."""
    limits, thresholds = Probes(), load_thresholds(None)
    sentences = (
        "below 2 % of their mean",
        f"`probes.kernel_time` ({limits.kernel_time * 1e3:g} ms)",
        f"`start_delay` ({limits.start_delay:g} s)",
        f"`probes.scheduler_deadline` ({limits.scheduler_deadline:g} s)",
        f"`probes.occupancy_limit` ({limits.occupancy_limit * 100:g} %)",
        f"trailing window of {WINDOW_SECONDS / 3600:g} h",
        f"{limits.occupancy_limit * WINDOW_SECONDS:g} s for each GPU",
        f"{SEARCH_SHARE * limits.occupancy_limit * DAY_SECONDS:g} s for each GPU",
        f"checked every {CHECK_INTERVAL_SECONDS:g} s",
        f"{ASK_SECONDS:g} s later its process group gets SIGTERM, {TERM_SECONDS:g} s after that SIGKILL",
        f"tried again at the next {({900.0: 'quarter of an hour'})[TRY_AGAIN_SECONDS]} by the clock, "
        f"{({60.0: 'a minute'})[SOONEST_SECONDS]} later at the soonest",
        f"forward to {SUSPICIOUS_RETRY_SECONDS:g} s later",
        {1: "at most once an hour", 2: "at most twice an hour"}[SUSPICIOUS_RETRIES_PER_HOUR],
        f"the last {KEPT_RESULTS} good results",
        f"It needs {thresholds.probe_baseline_results_first:g} results",
        f"above {thresholds.probe_drift_max_factor:g} times theirs",
        f"median + {thresholds.probe_latency_spike_mad_factor:g} MAD",
        f"{thresholds.probe_latency_spike_median_factor:g} × median",
        f"below {thresholds.probe_bandwidth_utilization_low_ratio * 100:g} % of an expected value",
        f"the last {thresholds.probe_step_results:g} results over that of the "
        f"{thresholds.probe_baseline_results_min:g} before; from {thresholds.probe_step_min_factor:g} on",
    )
    assert [one for one in sentences if one not in WORDS] == []


def test_a_name_that_the_document_lacks_is_found() -> None:
    """The reading of the tables sees rows at all, and several names in one."""
    assert {"setup_timeout", "crashed"} <= set(first_column("failure reason"))
    assert rows("no such table") == []
