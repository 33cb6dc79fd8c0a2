"""What commwatch probe says of a cycle: verdicts, exit codes, and the sentences below the table."""

from __future__ import annotations

from typing import Any

import pytest

from commwatch.config.settings import Duration, Probe, Rate
from commwatch.config.thresholds import load_thresholds
from commwatch.node.gpus_now import ProbeGpu
from commwatch.node.topology.pair_matrix import Suspect
from commwatch.probes.by_hand.answer import Answer, answer_of, notes_of
from commwatch.probes.cycle.outcome import Problem, failed
from commwatch.probes.plan import CyclePlan, CycleResult, NcclNotes, Skipped, Yielded
from commwatch.probes.results.expected import Expected, ExpectedSource
from commwatch.views.probe_text import columns_of, table_rows
from heatmap.matrices import matrix
from probes.recorded import Foreseen
from probes.results import MIB, measured, plan_of
from support.passes import in_one_pass

RATE = 100e9
NOW = 1_000_000.0
PROBE = Probe()


def gpus(count: int) -> tuple[ProbeGpu, ...]:
    # The indexes are not the ranks: a probe may leave GPUs out.
    return tuple(ProbeGpu(rank + 4, f"GPU-{rank}", "", "") for rank in range(count))


def answer(
    plan: CyclePlan, result: CycleResult, source: ExpectedSource | None = "reference", probe: Probe = PROBE, **more: Any
) -> Answer:  # fmt: skip
    """With an expected bandwidth of 100 GB/s from some source."""
    expected = {} if source is None else {place: Expected(RATE, source, "a test") for place in range(len(plan.steps))}
    planned = Foreseen(plan, gpus(len(plan.devices)), expectations=expected)
    return answer_of(planned, probe, result, load_thresholds(None), **more)


def at(rate: float, plan: CyclePlan | None = None) -> CycleResult:
    """A cycle of all_reduce over two ranks, whose factor is 1, at a bus bandwidth."""
    return measured(plan or plan_of(), NOW, [10e-6, MIB / rate])


@in_one_pass(
    "share, source, verdict, code",
    [
        (0.86, "reference", "good", 0),
        (0.84, "reference", "short", 1),
        (0.84, "configured", "short", 1),
        (0.61, "reference", "short", 1),
        (0.61, "learned", "good", 0),
        (0.59, "reference", "low", 1),
        (0.59, "configured", "low", 1),
        (0.59, "model", "below model", 0),
        (0.61, "model", "good", 0),
        (1.2, "model", "good", 0),
        (0.01, None, "not judged", 0),
    ],
)
def test_bandwidth_is_held_against_what_is_expected(
    share: float, source: ExpectedSource | None, verdict: str, code: int
) -> None:
    """Below 60 % of a firm value it is low, from there to 85 % of a configured or published one short; a model only
    hints; a ratio above 1 stays as it is."""
    found = answer(plan_of(), at(share * RATE), source)
    latency, bandwidth = found.rows

    assert (bandwidth.verdict, found.exit_code) == (verdict, code)
    assert bandwidth.utilization_ratio == (pytest.approx(share) if source else None)
    assert (latency.expected, latency.bus_bandwidth_bytes_per_second, latency.verdict) == (None, None, "not judged")


@pytest.mark.parametrize(("limit", "verdict", "code"), [(11e-6, "good", 0), (9e-6, "slow", 1)])
def test_latency_is_held_against_its_limit(limit: float, verdict: str, code: int) -> None:
    """Where the operator has set one."""
    found = answer(plan_of(), at(RATE), probe=Probe(latency_limit=Duration(limit)))

    assert (found.rows[0].verdict, found.exit_code) == (verdict, code)


def test_the_bus_bandwidth_has_the_factor_of_the_operation() -> None:
    """Of an all_reduce over four ranks 2 × 3/4; the slowest rank's time counts."""
    plan = plan_of(ranks=4)
    (_, row) = answer(plan, measured(plan, NOW, [1e-5, [1e-3, 1e-3, 2e-3, 1e-3]])).rows

    assert row.algorithm_bandwidth_bytes_per_second == pytest.approx(MIB / 2e-3)
    assert row.bus_bandwidth_bytes_per_second == pytest.approx(1.5 * MIB / 2e-3)


def test_the_slowest_rank_is_named_where_ranks_are_uneven() -> None:
    """By its GPU; ranks that keep pace within a tenth are not worth a word."""
    plan = plan_of(ranks=4)
    uneven = answer(plan, measured(plan, NOW, [1e-5, [1e-3, 1e-3, 2e-3, 1e-3]]))
    even = answer(plan, measured(plan, NOW, [1e-5, [1e-3, 1e-3, 1.1e-3, 1e-3]]))

    assert list(notes_of(uneven)) == [
        "all_reduce for bandwidth: rank 2 (GPU6) is the slowest; the fastest takes 50 % of its time"
    ]
    assert (uneven.rows[1].slowest_rank, even.rows[1].slowest_rank) == (2, None)
    assert list(notes_of(even)) == []


ERROR = Problem("nccl_error", "unhandled system error", 1, "setup")
SAID = NcclNotes(category="ib_retry", warnings=("NET/IB : Got completion with error 12",))


@in_one_pass(
    "result, verdict, code, notes",
    [
        (failed(ERROR, plan_of(), SAID, finished_at=NOW, occupied_seconds=1.0), "failed", 1,
         ["rank 1 (GPU5) in phase setup: nccl_error: ib_retry: unhandled system error",
          "NCCL: NET/IB : Got completion with error 12"]),
        (Skipped(finished_at=NOW, reason="gpu_busy", detail="GPU 0000:17:00.0 is busy"), "skipped", 3,
         ["gpu_busy: GPU 0000:17:00.0 is busy"]),
        (Yielded(finished_at=NOW, occupied_seconds=1.0, reason="process_appeared", detail="process 7 came"),
         "gave way", 3, ["gave way: process_appeared: process 7 came"]),
        (measured(plan_of(), NOW, [1e-5, MIB / RATE], settings={"NCCL_P2P_DISABLE": "1"}), "good", 0,
         ["NCCL settings of this machine in force: NCCL_P2P_DISABLE=1"]),
    ],
)  # fmt: skip
def test_what_became_of_a_cycle_is_said_once(result: CycleResult, verdict: str, code: int, notes: list[str]) -> None:
    """A failure names rank, GPU by its index, phase, and what NCCL said; skips and yields are none; settings of the
    machine may explain a result."""
    found = answer(plan_of(), result)

    assert (found.verdict, found.exit_code) == (verdict, code)
    assert list(notes_of(found)) == notes


def test_ranks_that_share_a_gpu_give_no_times() -> None:
    """What arrived was right; the table has no number."""
    plan = plan_of(backend="nccl", devices=("GPU-0",))
    found = answer(plan, measured(plan, NOW, [1e-5, 1e-4]))

    assert (found.rows, found.exit_code) == ((), 0)
    assert table_rows([found], 0.6) == [("ring ×2", *("-",) * 6, "exact")]
    assert "times say nothing" in next(notes_of(found))


def test_scaling_has_points_and_words() -> None:
    """A row for each number of ranks."""
    plan = plan_of("scaling", 4)
    found = answer(plan, measured(plan, NOW, [1e-4, 2e-4]))

    assert found.scaling is not None
    assert [point.ranks for point in found.scaling.points] == [2, 4]
    assert list(notes_of(found)) == list(found.scaling.words)
    assert [row[0] for row in table_rows([found], 0.6)] == ["ring: all_reduce ×2", "ring: all_reduce ×4"]


@in_one_pass(
    "factor, firm, suspected, verdict, word, code",
    [
        (1.0, True, False, "good", "good", 0),
        (0.5, False, False, "below model", "low (model)", 0),
        (0.5, True, False, "low", "low", 1),
        (1.0, False, True, "low", "low", 1),
    ],
)
def test_pairs_are_low_by_a_suspect_or_a_configured_value(
    factor: float, firm: bool, suspected: bool, verdict: str, word: str, code: int
) -> None:
    """A model alone only hints, as for any other bandwidth."""
    suspect = Suspect(kind="gpu", element="GPU0", confidence=1.0, slowdown=1.3, cells=((0, 1),), words="GPU0 is slow.")
    plan = plan_of("pairs", 4)
    pairs = matrix(4, factors={(0, 1): factor}, suspects=(suspect,) if suspected else ())
    found = answer(
        plan, measured(plan, NOW, [1e-4]), probe=Probe(expected_bandwidth=Rate(RATE) if firm else None), pairs=pairs
    )

    assert (found.verdict, found.exit_code) == (verdict, code)
    assert table_rows([found], 0.6)[-1][-1] == word


def test_pairs_of_which_nothing_is_expected_are_not_judged() -> None:
    """Not good either."""
    plan = plan_of("pairs", 4)
    found = answer(plan, measured(plan, NOW, [1e-4]), pairs=matrix(4, expected=None))

    assert {row[-1] for row in table_rows([found], 0.6)} == {"not judged"}
    assert found.exit_code == 0


def test_the_table_has_the_usual_and_the_slowest_pair() -> None:
    """The verdict of the cycle stands at the slowest; what is usual may be good."""
    plan = plan_of("pairs", 4)
    pairs = matrix(4, bandwidth=100e9, expected=100e9, factors={(0, 1): 0.5}, noise=0)
    found = answer(plan, measured(plan, NOW, [1e-4]), pairs=pairs)

    assert table_rows([found], 0.6) == [
        ("ring: median of 12", "8 B", "9 µs", "-", "-", "-", "-", "not judged"),
        ("ring: median of 12", "16 MiB", "168 µs", "100", "100", "100 model", "100 %", "good"),
        ("ring: slowest", "16 MiB", "336 µs", "50.0", "50.0", "100 model", "50 %", "low (model)"),
    ]
    assert found.pairs_expected_source == "model"


@pytest.mark.parametrize(("rate", "unit", "shown"), [(47.25e9, "GB/s", "47.2"), (34e6, "MB/s", "34.0")])
def test_all_rates_have_the_unit_of_the_heading(rate: float, unit: str, shown: str) -> None:
    """10⁹ bytes per second, or 10⁶ where the largest is below that."""
    found = answer(plan_of(), at(rate), None)

    assert columns_of([found])[3:6] == (f"algbw\n{unit}", f"busbw\n{unit}", f"expected\n{unit}")
    assert table_rows([found], 0.6)[1][3:5] == (shown, shown)
