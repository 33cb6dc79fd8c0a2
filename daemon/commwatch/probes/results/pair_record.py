"""State of a probe of pairs over time: its matrices, their suspects, and the metrics."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec
import structlog

from commwatch.config.settings import Probe
from commwatch.config.thresholds import Thresholds
from commwatch.errors import StateError
from commwatch.node.topology.pair_matrix import PairCell, PairMatrix, Suspect
from commwatch.node.topology.ways import Cell
from commwatch.probes.plan import CyclePlan, CycleResult, Measured
from commwatch.probes.prospect import Prospect
from commwatch.probes.results.bus_bandwidth import bus_bandwidth
from commwatch.probes.results.culprit import (
    BANDWIDTH_RULE,
    MATRICES,
    comparable,
    find_suspects,
    keep_good,
    looks_slow,
    slower_than_before,
)
from commwatch.probes.results.expected import Expected, ExpectedSource
from commwatch.probes.results.history import ProbeHistory
from commwatch.probes.results.record import ProbeRecord, Reading
from commwatch.probes.results.slow_cells import low_cells, names_of
from commwatch.state.records import Timestamp, check_labels, check_unique, read_record
from commwatch.units import format_rate

log = structlog.get_logger("commwatch.probing")

_MOST_SUSPECTS = 2
"""In the line of a result."""


def matrix_of(result: Measured, prospect: Prospect) -> PairMatrix:
    """The pairs that a cycle measured; of a collective's cycle, ``prospect`` is that of the probe of pairs."""
    plan, expected, path_classes = prospect.plan, prospect.expected_of_pairs, prospect.path_classes
    cells: dict[Cell, PairCell] = {}
    number = 0
    for outcome in result.outcomes:
        step = outcome.step
        for pair in step.pairs:
            # Latency is timed by the source's clock, bandwidth where the bytes arrive.
            seconds = outcome.seconds[pair[0] if step.purpose == "latency" else pair[1]]
            if seconds is None:
                continue
            cell = cells.get(pair) or PairCell(
                source=pair[0],
                destination=pair[1],
                expected_bandwidth=expected[pair].bytes_per_second if pair in expected else None,
                path=path_classes.get(pair, ""),
            )
            if step.purpose == "latency":
                cells[pair] = msgspec.structs.replace(cell, round=number, latency_seconds=seconds)
                continue
            rate = bus_bandwidth("send_recv", 2, step.size_bytes, seconds)
            which = "both_ways_bandwidth" if step.both_ways else "bandwidth"
            cells[pair] = msgspec.structs.replace(cell, round=number, **{which: rate})
        number += step.both_ways  # the last step of a round
    return PairMatrix(
        taken_at=result.finished_at,
        backend=plan.backend,
        nccl_version=result.nccl_version,
        settings_digest=result.nccl.settings_digest,
        simulated_node=prospect.simulated_node,
        latency_bytes=plan.latency_bytes,
        bandwidth_bytes=plan.bandwidth_bytes,
        endpoints=prospect.endpoints,
        cells=tuple(cells[pair] for pair in sorted(cells)),
    )


def _check(matrices: Iterable[PairMatrix]) -> None:
    """Whether matrices make sense: a file may be damaged and yet have the right types.

    Raises:
        ValueError: a time is none, a cell is not between two of the ends or is there twice, or two ends have one name.
    """
    for matrix in matrices:
        msgspec.convert(matrix.taken_at, Timestamp)
        places = range(len(matrix.endpoints))
        cells = [(cell.source, cell.destination) for cell in matrix.cells]
        for source, destination in (*cells, *(cell for one in matrix.suspects for cell in one.cells)):
            if source not in places or destination not in places or source == destination:
                raise ValueError(f"a cell from {source} to {destination} in a matrix of {len(places)} ends")
        check_unique(cells, "cell")
        check_unique((end.label for end in matrix.endpoints), "end")
        check_labels((matrix.backend, *(text for one in matrix.suspects for text in (one.kind, one.element))))
        check_labels(text for one in matrix.endpoints for text in (one.label, one.device, one.pci_address, one.name))


def are_firm(expected: Collection[Expected]) -> bool:
    """Whether pairs that are all below what is expected are slow."""
    return bool(expected) and all(one.is_firm for one in expected)


def _source_of_all(expected: Iterable[Expected]) -> ExpectedSource | Literal["none"]:
    """A model's word for one pair makes all of them no more than that; ``none`` without any."""
    sources = {one.source for one in expected}
    return "model" if "model" in sources else next(iter(sources), "none")


class PairHistory(ProbeHistory):
    """State that survives a restart, besides that of every probe."""

    matrices: list[PairMatrix] = msgspec.field(default_factory=list)
    """The last ones in a row, oldest first; the suspects are in the newest."""
    good: tuple[PairMatrix, ...] = ()
    """Earlier ones of the same series in which nothing was slow."""
    expected_source: ExpectedSource | Literal["none"] = "none"
    """Of what the pairs of the newest one should give; ``model`` where it is so for any of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check([*self.matrices, *self.good])
        check_unique((one.taken_at for one in self.matrices), "matrix")
        check_unique((one.taken_at for one in self.good), "matrix")


class PairRecord(ProbeRecord):
    """A probe of pairs; takes the outcome of each cycle and gives the metrics. No I/O, and time is handed in."""

    history: PairHistory

    def __init__(
        self, plan: CyclePlan, probe: Probe, limits: Thresholds, history: PairHistory | None = None
    ) -> None:  # fmt: skip
        super().__init__(plan, probe, limits, history or PairHistory(plan.backend))

    def take(self, result: CycleResult, now: float, prospect: Prospect | None = None) -> None:
        """As of every probe, with the matrix."""
        super().take(result, now)
        if isinstance(result, Measured) and prospect is not None and not self._plan.shares_gpus:
            self._take(matrix_of(result, prospect), prospect, now)

    @property
    def _expected_source(self) -> str:
        return self.history.expected_source

    def _take(self, matrix: PairMatrix, prospect: Prospect, now: float) -> None:
        history, parts, expected = self.history, prospect.parts, prospect.expected_of_pairs.values()
        history.expected_source = _source_of_all(expected)
        if not all(end.device for end in matrix.endpoints):
            history.matrices = [matrix]  # ranks of one host do not measure a fabric
            return
        row = [one for one in history.matrices if comparable(one, matrix) and self._is_current(one.taken_at, now)]
        row = [*row, matrix][-MATRICES:]
        firm = are_firm(expected)
        suspects = find_suspects(row, parts, history.good, firm_expected=firm)
        if not looks_slow(matrix, parts, history.good, firm_expected=firm):
            history.good = keep_good(history.good, matrix)
        elif not suspects:
            self.suspicious = True  # two more matrices decide; a named part can wait for its turn
        history.matrices = [*row[:-1], msgspec.structs.replace(matrix, suspects=suspects)]

    @property
    def last_matrix(self) -> PairMatrix | None:
        """The newest one, however old; None before the first."""
        return self.history.matrices[-1] if self.history.matrices else None

    def current_matrix(self, now: float) -> PairMatrix | None:
        """The newest one; None before the first, or where it is too old."""
        last = self.last_matrix
        return last if last is not None and self._is_current(last.taken_at, now) else None

    def suspects(self, now: float) -> tuple[Suspect, ...]:
        """The suspects of the last three matrices; empty once these are too old."""
        last = self.current_matrix(now)
        return last.suspects if last is not None else ()

    def explains_slowness(self, now: float) -> bool:
        """Whether the newest matrix, if it is current, names a part or has pairs far below what is expected."""
        return bool(self._known_slow(now))

    def is_outdated_by(self, result: Measured, prospect: Prospect, now: float) -> bool:
        """Whether a few pairs that were measured beside a collective are not as the newest matrix shows them.

        They are slow and were not, or they are well and a suspect is named by them.

        Args:
            result: of the collective, with steps of pairs as this probe's plan has them.
            prospect: of this probe.
            now: seconds since 1970.
        """
        beside = matrix_of(result, prospect)
        slow = slower_than_before(beside, self.history.good)
        if not self._known_slow(now).issuperset(slow):
            return True
        suspected = {cell for one in self.suspects(now) for cell in one.cells}
        last = self.current_matrix(now)
        if last is None or not comparable(beside, self.history.good[-1]):
            return False
        # A suspect is named from a smaller loss on than a pair: it is well where the pairs that were slow then are not.
        least = BANDWIDTH_RULE.slow / 2
        then, still = (set(slower_than_before(one, self.history.good, least)) for one in (last, beside))
        return bool(suspected.intersection(beside.values("both_ways"), then).difference(still))

    def _known_slow(self, now: float) -> set[Cell]:
        last, low = self.current_matrix(now), self._limits.probe_bandwidth_utilization_low_ratio
        if last is None:
            return set()
        return {*low_cells(last, "bandwidth", low), *(cell for one in last.suspects for cell in one.cells)}

    def words(self, now: float) -> str:
        """The slowest and the fastest pair, and what is suspected; empty without a current matrix."""
        last = self.current_matrix(now)
        cells = [] if last is None else [cell for cell in last.cells if cell.bandwidth is not None]
        if last is None or not cells:
            return ""
        rates = sorted(cells, key=lambda cell: cell.bandwidth or 0.0)
        worst, best = rates[0], rates[-1]
        ends = f"{last.endpoints[worst.source].label} to {last.endpoints[worst.destination].label}"
        span = f"{format_rate(worst.bandwidth or 0.0)} ({ends}) to {format_rate(best.bandwidth or 0.0)}"
        suspects = [one.words.partition(": ")[0] for one in last.suspects]  # the sentence names the part first
        return "; suspect: ".join([span, *suspects[:_MOST_SUSPECTS]])

    def readings(self, now: float) -> list[Reading]:
        """As of every probe, and those of the pairs and suspects; absent with the last result."""
        series = super().readings(now)
        last = self.current_matrix(now)
        if last is None:
            return series
        for cell in last.cells:
            ends = (last.endpoints[cell.source].label, last.endpoints[cell.destination].label, last.backend)
            series += [
                ("commwatch_pair_latency_seconds", ends, cell.latency_seconds),
                ("commwatch_pair_bandwidth_bytes_per_second", ends, cell.bandwidth),
                ("commwatch_pair_both_ways_bandwidth_bytes_per_second", ends, cell.both_ways_bandwidth),
                ("commwatch_pair_expected_bandwidth_bytes_per_second", ends, cell.expected_bandwidth),
            ]
        series += [("commwatch_pair_bandwidth_ratio", (pair,), ratio) for pair, ratio in _ratios(last).items()]
        ratios: dict[tuple[str, ...], float] = {}
        for one in self.suspects(now):  # a part may be slow in each direction by itself: the surer one counts
            ratios.setdefault((one.kind, one.element), one.confidence)
        return series + [("commwatch_suspect_ratio", labels, ratio) for labels, ratio in ratios.items()]


def _ratios(matrix: PairMatrix) -> Mapping[str, float]:
    """By pair, ``GPU0-GPU1``: the slower direction over what is expected; gloo measures processes of the host."""
    names, found = names_of(matrix.endpoints), dict[str, float]()
    for cell in matrix.cells if matrix.backend != "gloo" else ():
        if cell.bandwidth is not None and cell.expected_bandwidth:
            pair = "-".join(names[end] for end in sorted((cell.source, cell.destination)))
            ratio = cell.bandwidth / cell.expected_bandwidth
            found[pair] = min(ratio, found.get(pair, ratio))
    return found


class _Matrices(msgspec.Struct):
    """The part of a history that a command reads."""

    matrices: list[PairMatrix] = []

    def __post_init__(self) -> None:
        _check(self.matrices)


def load_matrices(state: Path) -> list[PairMatrix]:
    """The matrices that a daemon has kept in a state directory, oldest first; a file that cannot be read is logged."""
    found: list[PairMatrix] = []
    for file in sorted(state.glob("probe-*.json")):
        try:
            record = read_record(file, _Matrices)
            found += record.matrices if record else ()
        except StateError as error:
            log.warning("the pair matrices of a file are not used", file=str(file), error=str(error))
    return sorted(found, key=lambda one: one.taken_at)
