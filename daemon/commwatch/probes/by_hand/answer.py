"""Results of a cycle for ``commwatch probe``: the records of ``--json``; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec

from commwatch.config.settings import Probe
from commwatch.config.thresholds import Thresholds
from commwatch.errors import ExitCode
from commwatch.node.topology.pair_matrix import PairMatrix
from commwatch.probes.plan import CycleResult, Failed, Measure, Measured, Skipped, StepOutcome, Yielded
from commwatch.probes.prospect import Prospect
from commwatch.probes.rank_plan import Backend, Operation, Purpose
from commwatch.probes.results.bus_bandwidth import (
    Hidden,
    ScalingPoint,
    balance_of,
    hidden_of,
    scaling_points,
    scaling_words,
)
from commwatch.probes.results.expected import Expected
from commwatch.probes.results.rates import Rate
from commwatch.probes.results.slow_cells import slow_cells

SCHEMA_VERSION = 1
"""Grows when something is taken away or changes its meaning; additions leave it as it is."""

UNEVEN_RATIO = 0.9
"""Below this share of the slowest rank's time the fastest one is named: smaller differences are noise."""

Verdict: TypeAlias = Literal["good", "low", "short", "slow", "below model", "not judged"]
"""low: bandwidth below the threshold of what is configured or published; short: not low, and below the share of it that
healthy nodes reach; below model: low by what a model says, which is no failure; slow: latency above the limit that is
configured; not judged: there is no reference."""

CycleVerdict: TypeAlias = Literal["good", "below model", "low", "short", "slow", "failed", "skipped", "gave way"]


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One step: an operation at a size over some ranks."""

    operation: Operation
    purpose: Purpose
    size_bytes: int
    members: tuple[int, ...]
    """Ranks that took part."""
    seconds: float
    """Of one call on the slowest rank."""
    median_seconds: float
    """Over the ranks."""
    slowest_rank: int | None
    """Where the ranks are uneven."""
    balance_ratio: float | None
    """Time of the fastest rank over that of the slowest; null for one rank."""
    algorithm_bandwidth_bytes_per_second: float | None
    """Of the slowest rank; null for latency."""
    bus_bandwidth_bytes_per_second: float | None
    expected: Expected | None
    utilization_ratio: float | None
    """Bus bandwidth over the expected one."""
    verdict: Verdict


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """Whether adding GPUs helps."""

    points: tuple[ScalingPoint, ...]
    words: tuple[str, ...]


class Member(msgspec.Struct, frozen=True, kw_only=True):
    gpu: str
    """NVML index; empty where the driver has none."""
    uuid: str
    pci_bus_id: str
    name: str


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    probe: str
    measure: Measure
    backend: Backend
    ranks: int
    gpus: tuple[Member, ...]
    """By rank; with more ranks than GPUs they begin again."""
    verdict: CycleVerdict
    shares_gpus: bool
    """More ranks than GPUs: the received data were right, but its times have no meaning, so there are no rows."""
    rows: tuple[StepRow, ...] = ()
    """Of pairs there are none: see ``pairs``."""
    pairs: PairMatrix | None = None
    pairs_expected_source: Literal["configured", "model"] | None = None
    """Where the expected bandwidths of ``pairs`` come from."""
    scaling: Scaling | None = None
    hidden: Hidden | None = None
    """Of a training-like probe."""
    notes: tuple[str, ...] = ()
    """Notes below the table."""
    result: CycleResult

    @property
    def exit_code(self) -> int:
        """0 good or only below a model, 1 failed, low, short or slow, 3 skipped or yielded."""
        if self.verdict in ("good", "below model"):
            return ExitCode.OK
        return ExitCode.NOT_KNOWN if self.verdict in ("skipped", "gave way") else ExitCode.FOUND

    @property
    def is_bad(self) -> bool:
        """It failed, or gave less or took longer than it should."""
        return self.exit_code == ExitCode.FOUND

    @property
    def has_no_place_here(self) -> bool:
        """This node lacks what it measures: a second GPU, or any."""
        return isinstance(self.result, Skipped) and self.result.reason in ("single_gpu", "no_gpu_backend")

    def rank_name(self, rank: int) -> str:
        """``rank 3 (GPU3)``; without a GPU ``rank 3``."""
        gpu = self.gpus[rank % len(self.gpus)].gpu if self.gpus else ""
        return f"rank {rank} (GPU{gpu})" if gpu else f"rank {rank}"


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The document of ``commwatch probe --json``."""

    schema_version: int = SCHEMA_VERSION
    simulated_node: str
    """Name of the simulated node; empty for a real one."""
    probes: tuple[Answer, ...]


def answer_of(
    prospect: Prospect,
    probe: Probe,
    result: CycleResult,
    limits: Thresholds,
    *,
    pairs: PairMatrix | None = None,
    notes: Sequence[str] = (),
) -> Answer:
    """The answer from the outcome of a cycle.

    Args:
        probe: its configuration; what is expected of pairs is firm where it says so.
    """
    plan, expected, firm_pairs = prospect.plan, prospect.expected, probe.expected_bandwidth is not None
    rows: tuple[StepRow, ...] = ()
    scaling = hidden = None
    if isinstance(result, Measured) and not plan.shares_gpus and plan.measure != "pairs":
        rows = tuple(
            _row(outcome, expected.get(place), limits, probe.latency_limit)
            for place, outcome in enumerate(result.outcomes)
        )
        if plan.measure == "scaling":
            scaling = _scaling(rows)
        hidden = hidden_of({row.operation: row.seconds for row in rows})
    verdicts = {row.verdict for row in rows}
    if pairs is not None:
        verdicts.add(_pairs_verdict(pairs, limits.probe_bandwidth_utilization_low_ratio, firm_pairs))
    return Answer(
        probe=plan.probe,
        measure=plan.measure,
        backend=plan.backend,
        ranks=plan.ranks,
        gpus=tuple(
            Member(gpu=str(one.index), uuid=one.uuid, pci_bus_id=one.pci_bus_id, name=one.name) for one in prospect.gpus
        ),
        verdict=_cycle_verdict(result, verdicts),
        shares_gpus=plan.shares_gpus,
        rows=rows,
        pairs=pairs,
        pairs_expected_source=_pairs_source(pairs, firm_pairs),
        scaling=scaling,
        hidden=hidden,
        notes=tuple(notes),
        result=result,
    )


def _row(outcome: StepOutcome, expected: Expected | None, limits: Thresholds, latency_limit: float | None) -> StepRow:
    step, seconds = outcome.step, outcome.slowest_seconds
    balance = balance_of(outcome.seconds)
    rate = Rate(step, seconds, expected) if step.purpose in ("bandwidth", "sustained") else None
    used = None if rate is None else rate.utilization
    verdict: Verdict = "not judged"
    if step.purpose == "latency" and latency_limit is not None:
        verdict = "slow" if seconds > latency_limit else "good"
    elif expected is not None and used is not None:
        verdict = _bandwidth_verdict(used, expected, limits)
    return StepRow(
        operation=step.operation,
        purpose=step.purpose,
        size_bytes=step.size_bytes,
        members=step.members,
        seconds=seconds,
        median_seconds=outcome.median_seconds,
        slowest_rank=balance.slowest if balance is not None and balance.ratio < UNEVEN_RATIO else None,
        balance_ratio=None if balance is None else balance.ratio,
        algorithm_bandwidth_bytes_per_second=None if rate is None else rate.algorithm_bandwidth,
        bus_bandwidth_bytes_per_second=None if rate is None else rate.bus_bandwidth,
        expected=None if rate is None else expected,
        utilization_ratio=used,
        verdict=verdict,
    )


def _bandwidth_verdict(used: float, expected: Expected, limits: Thresholds) -> Verdict:
    if used < limits.probe_bandwidth_utilization_low_ratio:
        return "below model" if expected.source == "model" else "low"
    is_short = used < limits.probe_bandwidth_short_ratio and expected.source in ("configured", "reference")
    return "short" if is_short else "good"


def _scaling(rows: Sequence[StepRow]) -> Scaling | None:
    seconds = {len(row.members): row.seconds for row in rows}
    if not seconds:
        return None
    points = scaling_points(rows[0].size_bytes, seconds)
    return Scaling(points=points, words=scaling_words(points))


def _pairs_verdict(pairs: PairMatrix, low_ratio: float, firm: bool) -> Verdict:
    """A suspect makes pairs low whatever is expected of them."""
    slow = bool(slow_cells(pairs, low_ratio))
    if pairs.suspects or (slow and firm):
        return "low"
    return "below model" if slow else "good"


def _pairs_source(pairs: PairMatrix | None, firm: bool) -> Literal["configured", "model"] | None:
    if pairs is None or all(cell.expected_bandwidth is None for cell in pairs.cells):
        return None
    return "configured" if firm else "model"


def _cycle_verdict(result: CycleResult, verdicts: Collection[Verdict]) -> CycleVerdict:
    if isinstance(result, Failed):
        return "failed"
    if isinstance(result, Skipped):
        return "skipped"
    if isinstance(result, Yielded):
        return "gave way"
    order: tuple[Literal["low", "slow", "short", "below model"], ...] = ("low", "slow", "short", "below model")
    return next((one for one in order if one in verdicts), "good")


_BY_WEIGHT = (ExitCode.OK, ExitCode.NOT_KNOWN, ExitCode.FOUND)


def exit_code_of(answers: Iterable[Answer]) -> int:
    """The most telling of all exit codes: a failure before what was not measured."""
    return max((one.exit_code for one in answers), key=_BY_WEIGHT.index, default=ExitCode.OK)


def notes_of(answer: Answer) -> Iterator[str]:
    """Notes below the table, with the answer's own: the reason for a missing result, and the ranks that lag."""
    result = answer.result
    if isinstance(result, Measured):
        yield from _uneven(answer)
        if result.nccl.settings:
            settings = ", ".join(f"{name}={value}" for name, value in sorted(result.nccl.settings.items()))
            yield f"NCCL settings of this machine in force: {settings}"
        if answer.shares_gpus:
            yield "what arrived was exact; several ranks share a GPU, so times say nothing"
    elif isinstance(result, Failed):
        yield _by_index(answer, result.detail)
        yield from (f"NCCL: {line}" for line in result.nccl.warnings)
    elif isinstance(result, Yielded):
        yield f"gave way: {result.reason}: {result.detail}"
    else:
        yield f"{result.reason}: {result.detail}"
    yield from answer.notes
    if answer.scaling is not None:
        yield from answer.scaling.words
    if answer.hidden is not None:
        yield answer.hidden.words


def _by_index(answer: Answer, text: str) -> str:
    """A text with the GPUs by their indexes, as the table has them, not by their UUIDs."""
    for gpu in answer.gpus:
        if gpu.uuid and gpu.gpu:
            text = text.replace(gpu.uuid, f"GPU{gpu.gpu}")
    return text


def _uneven(answer: Answer) -> Iterator[str]:
    """Collectives hold all ranks to the slowest, so an uneven one is worth a word for each size."""
    for row in answer.rows:
        if row.slowest_rank is not None and row.balance_ratio is not None:
            yield (
                f"{row.operation} for {row.purpose}: {answer.rank_name(row.slowest_rank)} is the slowest; "
                f"the fastest takes {100 * row.balance_ratio:.0f} % of its time"
            )
