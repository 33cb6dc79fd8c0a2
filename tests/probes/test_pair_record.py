"""What a record of pairs makes of its cycles: matrices, metrics, suspects, and what survives a restart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from commwatch.node.gpus_now import ProbeGpu
from commwatch.node.topology.pair_matrix import PairEndpoint
from commwatch.node.topology.ways import Cell, Direction, Element, PairWay, Parts, Passage
from commwatch.probes.plan import CyclePlan, Failed, Measured, Skipped, Yielded
from commwatch.probes.prospect import Prospect
from commwatch.probes.rank_plan import SimulatedNodePlan, Step
from commwatch.probes.results.expected import Expected
from commwatch.probes.results.pair_record import PairHistory, PairRecord, load_matrices, matrix_of
from commwatch.state.directory import StateDirectory
from commwatch_exporters.snapshot import Layout, Value
from probes.recorded import LIMITS, probe_of
from probes.results import MIB, outcome, plan_of
from support.passes import in_one_pass

ROUNDS = (((0, 3), (1, 2)), ((0, 2), (1, 3)), ((0, 1), (2, 3)))
"""Of four ranks."""
INTERVAL = probe_of().interval
OLDEST = 3 * INTERVAL


def _step(pairs: tuple[Cell, ...], size: int, both_ways: bool = False) -> Step:
    return Step(
        operation="send_recv",
        purpose="latency" if size == 8 else "bandwidth",
        size_bytes=size,
        members=tuple(sorted({rank for pair in pairs for rank in pair})),
        pairs=pairs,
        both_ways=both_ways,
    )


def steps() -> tuple[Step, ...]:
    """As the workload plans them: five steps for each round."""
    found: list[Step] = []
    for there in ROUNDS:
        back = tuple((target, source) for source, target in there)
        found += [
            _step(there, 8),
            _step(back, 8),
            _step(there, MIB),
            _step(back, MIB),
            _step((*there, *back), MIB, True),
        ]
    return tuple(found)


def plan(**changes: Any) -> CyclePlan:
    return plan_of("pairs", 4, steps=steps(), probe="pairs", **changes)


def healthy(_cell: Cell) -> float:
    return 1.0


def gpu3_slow(cell: Cell) -> float:
    return 1 / 0.7 if 3 in cell else 1.0


def result(at: float, slow: Callable[[Cell], float] = healthy, nccl_version: str = "2.27.5") -> Measured:
    """A cycle: 10 µs for a small message, 100 µs for a large one, 125 µs both ways, times what is slow."""
    seconds = {8: 1e-5, MIB: 1e-4}
    return Measured(
        finished_at=at,
        occupied_seconds=5.0,
        setup_seconds=3.0,
        nccl_version=nccl_version,
        outcomes=tuple(
            outcome(
                one, 4, [seconds[one.size_bytes] * (1.25 if one.both_ways else 1.0) * slow(pair) for pair in one.pairs]
            )
            for one in steps()
        ),
    )


def way(source: int, target: int) -> PairWay:
    ends: tuple[tuple[int, Direction], ...] = ((source, "out"), (target, "in"))
    return PairWay(tuple(Passage(Element("gpu", f"GPU{end}"), direction) for end, direction in ends), "NV switch")


CELLS = tuple((source, target) for source in range(4) for target in range(4) if source != target)
GPUS = tuple(ProbeGpu(one, f"GPU-{one}", f"0000:{one}7:00.0", "") for one in range(4))


@dataclass(frozen=True, slots=True)
class Foreseen(Prospect):
    """A cycle over ways that the test makes up."""

    expectations: Mapping[Cell, Expected] = field(
        default_factory=lambda: dict.fromkeys(CELLS, Expected(12e9, "model", "for the test"))
    )

    @property
    def expected_of_pairs(self) -> dict[Cell, Expected]:
        return dict(self.expectations)

    @property
    def path_classes(self) -> dict[Cell, str]:
        return dict.fromkeys(CELLS, "NV18")

    @property
    def parts(self) -> Parts:
        return Parts({cell: way(*cell) for cell in CELLS}, ("GPU0", "GPU1", "GPU2", "GPU3"))


def foreseen(gpus: tuple[ProbeGpu, ...] = GPUS, **changes: Any) -> Foreseen:
    simulation = SimulatedNodePlan(preset="h100x4", faults_file=None, started_at=0.0)
    return Foreseen(plan(simulation=simulation), gpus, **changes)


class Probe:
    """A record of pairs with a clock."""

    def __init__(self, history: PairHistory | None = None, now: float = 1_000_000.0, **changes: Any) -> None:
        self.record = PairRecord(plan(**changes), probe_of(), LIMITS, history)
        self.now = now

    def take(
        self,
        slow: Callable[[Cell], float] = healthy,
        after: float = INTERVAL,
        around: Prospect | None = None,
        nccl_version: str = "2.27.5",
    ) -> list[str]:
        """The parts that are named after another cycle."""
        self.now += after
        self.record.take(result(self.now, slow, nccl_version), self.now, around or foreseen())
        return [one.element for one in self.record.suspects(self.now)]

    def series(self, after: float = 0.0) -> dict[tuple[str, ...], Value]:
        """As the page has them, without the prefix; a name or label that is not of the catalogue raises."""
        readings = self.record.readings(self.now + after)
        Layout((metric, labels) for metric, labels, _ in readings)
        return {(metric.removeprefix("commwatch_"), *labels): value for metric, labels, value in readings}


def test_every_number_comes_from_the_clock_that_counts() -> None:
    """Latency of the source, bandwidth where the bytes arrive; the rounds in their order."""

    def named(cell: Cell) -> float:
        return 1 + cell[0] / 10 + cell[1] / 100

    matrix = matrix_of(result(5.0, named), foreseen())

    assert [(cell.source, cell.destination) for cell in matrix.cells] == sorted(CELLS)
    for cell in matrix.cells:
        ends = (cell.source, cell.destination)
        assert cell.latency_seconds == pytest.approx(1e-5 * named(ends))
        assert cell.bandwidth == pytest.approx(MIB / (1e-4 * named(ends)))
        assert cell.both_ways_bandwidth == pytest.approx(MIB / (1.25e-4 * named(ends)))
        assert cell.round == next(n for n, pairs in enumerate(ROUNDS) if tuple(sorted(ends)) in pairs)
        assert (cell.expected_bandwidth, cell.path) == (12e9, "NV18")
    assert (matrix.taken_at, matrix.latency_bytes, matrix.bandwidth_bytes) == (5.0, 8, MIB)
    assert (matrix.backend, matrix.nccl_version, matrix.simulated_node) == ("simulated", "2.27.5", "h100x4")


@in_one_pass(
    "expected, source",
    [
        ({}, "none"),
        (dict.fromkeys(CELLS, Expected(12e9, "configured", "")), "configured"),
        ({**dict.fromkeys(CELLS, Expected(12e9, "configured", "")), (0, 1): Expected(12e9, "model", "")}, "model"),
    ],
)
def test_the_conditions_say_where_the_expected_values_come_from(
    expected: dict[Cell, Expected], source: str
) -> None:  # fmt: skip
    """Of all pairs together: what one of them has from a model, all have."""
    probe = Probe()
    probe.take(around=foreseen(expectations=expected))

    [labels] = [labels for name, *labels in probe.series() if name == "probe_info"]
    assert labels[-1] == source


def test_what_was_not_measured_is_absent() -> None:
    """A pair that no step had is not in the matrix; a step that was left out leaves None; so does no expectation."""
    whole = result(5.0)
    some = tuple(one for one in whole.outcomes[:5] if not one.step.both_ways)
    matrix = matrix_of(msgspec.structs.replace(whole, outcomes=some), Prospect(plan(), GPUS))

    assert {(cell.source, cell.destination) for cell in matrix.cells} == {(0, 3), (3, 0), (1, 2), (2, 1)}
    assert {cell.both_ways_bandwidth for cell in matrix.cells} == {None}
    assert {cell.expected_bandwidth for cell in matrix.cells} == {None}
    assert {cell.path for cell in matrix.cells} == {""}


def test_the_metrics_are_those_of_the_last_matrix_until_it_is_too_old() -> None:
    """Each ordered pair with its numbers; three intervals later only the time of completion is left."""
    probe = Probe()
    assert not [key for key in probe.series() if key[0].startswith("pair_")]
    probe.take()

    shown = probe.series(after=OLDEST)
    assert shown["pair_latency_seconds", "0", "3", "simulated"] == pytest.approx(1e-5)
    assert shown["pair_bandwidth_bytes_per_second", "3", "0", "simulated"] == pytest.approx(MIB / 1e-4)
    assert shown["pair_both_ways_bandwidth_bytes_per_second", "1", "2", "simulated"] == pytest.approx(MIB / 1.25e-4)
    assert shown["pair_expected_bandwidth_bytes_per_second", "1", "2", "simulated"] == 12e9
    assert len([key for key in shown if key[0] == "pair_bandwidth_bytes_per_second"]) == 12
    assert shown["pair_bandwidth_ratio", "GPU1-GPU2"] == pytest.approx(MIB / 1e-4 / 12e9)
    assert len([key for key in shown if key[0] == "pair_bandwidth_ratio"]) == 6
    assert not [key for key in shown if key[0] == "suspect_ratio"]

    old = probe.series(after=OLDEST + 1)
    assert not [key for key in old if key[0].startswith(("pair_", "suspect"))]
    assert old["probe_last_completion_timestamp_seconds", "pairs", "simulated"] == probe.now


def test_the_third_slow_matrix_in_a_row_names_the_part() -> None:
    """The first two ask for another look soon; the third names; a good one takes it back."""
    probe = Probe()
    for _ in range(3):
        assert probe.take() == []
        assert not probe.record.suspicious
    for _ in range(2):
        assert probe.take(gpu3_slow, after=30) == []
        assert probe.record.suspicious

    assert probe.take(gpu3_slow, after=30) == ["GPU3"]

    assert not probe.record.suspicious, "what is named can wait for its turn"
    ratio = probe.series()["suspect_ratio", "gpu", "GPU3"]
    assert ratio is not None
    assert 0.5 < ratio <= 1
    assert ("suspect_ratio", "gpu", "GPU3") in probe.series(after=OLDEST)
    assert ("suspect_ratio", "gpu", "GPU3") not in probe.series(after=OLDEST + 1)
    assert probe.take() == []
    assert ("suspect_ratio", "gpu", "GPU3") not in probe.series()


def test_a_slow_pair_asks_for_another_look_and_is_named_by_the_third() -> None:
    """One matrix can never say enough of a single pair: it is no good one all the same."""

    def pair_slow(cell: Cell) -> float:
        return 1 / 0.7 if set(cell) == {0, 1} else 1.0

    probe = Probe()
    for _ in range(2):
        assert probe.take(pair_slow, after=30) == []
        assert probe.record.suspicious
    assert probe.take(pair_slow, after=30) == ["GPU0-GPU1"]
    assert not probe.record.suspicious
    assert probe.record.history.good == ()


def test_a_part_that_is_slow_by_directions_has_one_series() -> None:
    """What GPU3 sends is slower than what it gets: two explanations, one part."""

    def slow(cell: Cell) -> float:
        return 3.0 if cell[0] == 3 else 1.4 if cell[1] == 3 else 1.0

    probe = Probe()
    named = [probe.take(slow) for _ in range(3)][-1]
    assert named == ["GPU3", "GPU3"]
    assert [key for key in probe.series() if key[0] == "suspect_ratio"] == [("suspect_ratio", "gpu", "GPU3")]


def test_a_fault_stays_named_however_long_it_lasts() -> None:
    """Slow matrices do not become the history that they are held against."""
    probe = Probe()
    for _ in range(4):
        probe.take()
    named = [probe.take(gpu3_slow) for _ in range(40)]
    assert named[2:] == [["GPU3"]] * 38
    assert all(one.taken_at <= 1_000_000 + 4 * INTERVAL for one in probe.record.history.good)


def test_a_row_survives_a_restart() -> None:
    """Two slow matrices before, the third after: named; the history as JSON and back is the same."""
    before = Probe()
    for _ in range(3):
        before.take()
    for _ in range(2):
        before.take(gpu3_slow)
    text = msgspec.json.encode(before.record.history)
    again = msgspec.json.decode(text, type=PairHistory)
    assert again == before.record.history

    after = Probe(again, before.now)
    assert after.take(gpu3_slow) == ["GPU3"]


@pytest.mark.parametrize(
    "damage", [('"source":3', '"source":4'), ('"destination":0', '"destination":-1'), ('"cells":[', '"cells":[[')]
)
def test_a_damaged_history_is_set_aside(damage: tuple[str, str], tmp_path: Path) -> None:
    """Also where all types are right but a cell is between ends that the matrix does not have: it begins again."""
    probe, state = Probe(), StateDirectory(tmp_path)
    for _ in range(3):
        probe.take(gpu3_slow)
    text = msgspec.json.encode(probe.record.history).decode()
    file = tmp_path / "probe-pairs.json"
    file.write_text(text)
    assert state.load("probe-pairs", PairHistory) == probe.record.history

    file.write_text(text.replace(*damage))
    assert load_matrices(tmp_path) == []
    assert state.load("probe-pairs", PairHistory) is None
    assert [one.name.split("-")[1] for one in tmp_path.iterdir()] == ["pairs.damaged"]


OTHER_CARD = ProbeGpu(0, "GPU-new", "0000:07:00.0", "")


@in_one_pass(
    "third, named",
    [
        # Each of the three must be current when the last one comes.
        ({"after": OLDEST - INTERVAL}, [["GPU3"], [], []]),
        ({"after": OLDEST - INTERVAL + 1}, [[], [], []]),
        # Another NCCL version, or another card in the slot, begins again.
        ({"nccl_version": "2.29.1"}, [[], [], ["GPU3"]]),
        ({"around": foreseen((OTHER_CARD, *GPUS[1:]))}, [[], [], ["GPU3"]]),
    ],
)
def test_only_current_matrices_of_one_series_are_in_a_row(third: dict[str, Any], named: list[list[str]]) -> None:
    """After two slow ones."""
    probe = Probe()
    probe.take(gpu3_slow)
    probe.take(gpu3_slow)

    assert [probe.take(gpu3_slow, **third) for _ in range(3)] == named


def test_cycles_without_a_result_leave_the_row_as_it_is() -> None:
    """Skipped, gave way, failed: counted, and the suspect stays until it is too old."""
    probe = Probe()
    for _ in range(3):
        probe.take(gpu3_slow)
    end = {"finished_at": probe.now, "occupied_seconds": 1.0, "detail": ""}
    for other in (
        Skipped(finished_at=probe.now, reason="gpu_busy", detail=""),
        Yielded(reason="process_appeared", **end),  # type: ignore[arg-type]
        Failed(reason="measure_timeout", **end),  # type: ignore[arg-type]
    ):
        probe.record.take(other, probe.now, foreseen())

    shown = probe.series()
    assert ("suspect_ratio", "gpu", "GPU3") in shown
    assert shown["probe_skips_total", "pairs", "simulated", "gpu_busy"] == 1
    assert shown["probe_yields_total", "pairs", "simulated", "process_appeared"] == 1
    assert shown["probe_failures_total", "pairs", "simulated", "measure_timeout"] == 1
    assert shown["probe_attempts_total", "pairs", "simulated"] == 4
    assert shown["probe_gpu_occupied_seconds_total", "pairs", "simulated"] == pytest.approx(4 * (3 * 5.0 + 2 * 1.0))


def test_what_is_kept_is_bounded() -> None:
    """Three in a row, and twelve good ones."""
    probe = Probe()
    for _ in range(40):
        probe.take()
    assert len(probe.record.history.matrices) == 3
    assert len(probe.record.history.good) == 12


def test_times_of_shared_gpus_are_no_matrix() -> None:
    """More ranks than GPUs prove that the sums are right; their times are time slices."""
    probe = Probe(backend="nccl", devices=("GPU-0", "GPU-1"))
    probe.take()
    assert probe.record.last_matrix is None
    assert not [key for key in probe.series() if key[0].startswith("pair_")]


def test_ranks_of_a_host_have_a_matrix_and_no_suspect() -> None:
    """gloo's ranks are processes of one machine: nothing of a fabric is between them."""
    probe = Probe(backend="gloo", devices=())
    around = Prospect(plan(backend="gloo", devices=()))
    assert [probe.take(gpu3_slow, around=around) for _ in range(4)] == [[]] * 4
    assert probe.series()["pair_bandwidth_bytes_per_second", "0", "1", "gloo"] == pytest.approx(MIB / 1e-4)
    assert not [key for key in probe.series() if key[0] == "pair_bandwidth_ratio"]
    assert not probe.record.suspicious


def test_the_ends_are_the_gpus_by_rank() -> None:
    """Label, UUID, address and model."""
    gpu = ProbeGpu(3, "GPU-x", "0000:5d:00.0", "NVIDIA H100")
    expected = PairEndpoint(label="3", device="GPU-x", pci_address="0000:5d:00.0", name="NVIDIA H100")
    assert Prospect(plan(), (gpu,)).endpoints == (expected,)


def test_commands_read_the_matrices_that_a_daemon_kept(tmp_path: Path) -> None:
    """Those of all probes of pairs by time; other probes have none, a damaged file is passed over."""
    state = StateDirectory(tmp_path)
    assert load_matrices(tmp_path) == []
    for name, now in (("late", 2_000_000.0), ("early", 1_000_000.0)):
        probe = Probe(now=now)
        probe.take()
        probe.take()
        state.save(f"probe-{name}", probe.record.history)
    (tmp_path / "probe-all_reduce.json").write_text('{"backend": "simulated"}')
    (tmp_path / "probe-broken.json").write_text('{"matrices": [{')

    found = load_matrices(tmp_path)

    assert [one.taken_at for one in found] == [1_000_900.0, 1_001_800.0, 2_000_900.0, 2_001_800.0]


def only_pair_03_slow(cell: Cell) -> float:
    return 1 / 0.5 if set(cell) == {0, 3} else 1.0


def beside(at: float, slow: Callable[[Cell], float] = healthy, turn: int = 0) -> Measured:
    """A collective with the pairs of one round beside it."""
    whole = result(at, slow)
    mine = {pair for cell in ROUNDS[turn] for pair in (cell, cell[::-1])}
    steps_of_mine = tuple(one for one in whole.outcomes if mine.issuperset(one.step.pairs))
    return msgspec.structs.replace(whole, outcomes=steps_of_mine)


@pytest.mark.parametrize(
    ("matrices", "named", "now", "turn", "is_outdated"),
    [
        (healthy, [], healthy, 0, False),
        (healthy, [], only_pair_03_slow, 0, True),
        (healthy, [], only_pair_03_slow, 1, False),
        (gpu3_slow, ["GPU3"], gpu3_slow, 0, False),
        (gpu3_slow, ["GPU3"], healthy, 0, True),
    ],
    ids=["well and was", "slow and was not", "another pair than the slow one", "slow and known", "well and a suspect"],
)
def test_pairs_beside_a_collective_that_differ_from_the_matrix_outdate_it(
    matrices: Callable[[Cell], float], named: list[str], now: Callable[[Cell], float], turn: int, is_outdated: bool
) -> None:
    """A pair that became slow, or a suspect whose pair is well again; not what the matrix shows already."""
    probe = Probe()
    probe.take()
    found: list[str] = []
    for _ in range(3):
        found = probe.take(matrices)
    assert found == named

    assert probe.record.is_outdated_by(beside(probe.now + 60, now, turn), foreseen(), probe.now + 60) == is_outdated
