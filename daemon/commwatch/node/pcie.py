"""Whether the PCIe link of a GPU is degraded: narrower than expected, or slower than it should be under load."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

from commwatch_exporters.snapshot import Block, Layout

Aspect: TypeAlias = Literal["width", "generation"]
ASPECTS: Final[tuple[Aspect, ...]] = ("width", "generation")

LOAD_UTILISATION: Final = 0.5
"""A GPU on which kernels run for half of the driver's sample period or more is under load.

A GPU that is woken now and then for a moment may stay in a low performance state, with its link slow.
"""
LOAD_BYTES_PER_SECOND: Final = 500e6
"""PCIe traffic in one direction from which a GPU is under load.

Far above what an idle GPU moves (kilobytes), and half of what four lanes carry at generation 1, so that a link which
is stuck there cannot hide its own fault.
"""


class LinkReading(NamedTuple):
    """One reading of a GPU's link, and the values that it is compared with; None if not known."""

    time: float
    """Monotonic seconds."""
    width: int | None
    expected_width: int | None
    """The value that the inventory has learned or the operator accepted."""
    width_max: int | None
    """Lanes that both ends can use."""
    generation: int | None
    generation_max: int | None
    """Highest generation of both ends."""


HIGHEST_PERFORMANCE_STATE: Final = 0
"""P0, the only state in which a GPU keeps its link at full speed whatever the board: in P2 some run at generation 3."""


def of_both_ends(*maxima: float | None) -> int | None:
    """The least of the maxima that are known; None where none is."""
    known = [maximum for maximum in maxima if maximum is not None]
    return int(min(known)) if known else None


def is_narrow(width: float | None, expected: float | None, maximum: float | None) -> bool | None:
    """Whether a link has fewer lanes than it should; None where that is not known.

    The learned width takes precedence over the maximum: a slot that was never wired wider, or that the operator has
    accepted, is no fault, and a slot whose maximum has fallen is one.
    """
    limit = maximum if expected is None else expected
    return None if width is None or limit is None else width < limit


def is_slow(generation: float | None, maximum: float | None) -> bool | None:
    """Whether a link runs below its highest generation; None where that is not known."""
    return None if generation is None or maximum is None else generation < maximum


def is_loaded(utilisation: float | None, *rates: float | None, performance_state: float | None = None) -> bool:
    """Whether a GPU is under load, so that its link should run at full speed.

    Args:
        utilisation: share of time in which a kernel ran.
        rates: PCIe traffic in each direction, bytes per second.
        performance_state: 0 to 15; None where the driver does not say, and then the load alone decides.
    """
    if performance_state not in (None, HIGHEST_PERFORMANCE_STATE):
        return False
    busy = utilisation is not None and utilisation >= LOAD_UTILISATION
    return busy or any(rate is not None and rate >= LOAD_BYTES_PER_SECOND for rate in rates)


class _LinkVerdict:
    """The state of one aspect, and the time for which it was bad."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._is_bad: bool | None = None
        self._time = float("-inf")

    def judge(self, time: float, is_bad: bool | None, max_gap_seconds: float) -> None:
        """Take the verdict of a reading; only the time between two bad readings counts as bad."""
        if is_bad and self._is_bad and 0.0 < time - self._time <= max_gap_seconds:
            self.seconds += time - self._time
        self._is_bad, self._time = is_bad, time

    def value(self, now: float, max_gap_seconds: float) -> int | None:
        """1 while it is bad, 0 while it is not; None if the last reading that could show it is too old."""
        is_current = self._is_bad is not None and now - self._time <= max_gap_seconds
        return int(bool(self._is_bad)) if is_current else None


class GpuLinkWatch:
    """The link of one GPU, followed from reading to reading.

    Width is judged at once. The generation follows the performance state of the GPU, and so is judged only where the
    GPU was under load, and in P0 where its state is known, before and after the reading; until the load after it is
    known, the reading waits.

    Args:
        gpu: NVML index, as a label.
        pci_bus_id: PCI address, as a label.
        max_gap_seconds: readings further apart say nothing of the time between them.
    """

    def __init__(self, gpu: str, pci_bus_id: str, max_gap_seconds: float) -> None:
        self.max_gap_seconds = max_gap_seconds
        labels = (gpu, pci_bus_id)
        self._layout = Layout(
            (f"commwatch_pcie_link_degraded{suffix}", (*labels, aspect))
            for suffix in ("", "_seconds_total")
            for aspect in ASPECTS
        )
        self._width, self._generation = _LinkVerdict(), _LinkVerdict()
        self._waiting: list[tuple[float, bool | None]] = []
        """Time and verdict of the readings whose load afterwards is not known yet."""
        self._loads: dict[str, tuple[float, bool, bool]] = {}
        """By evidence: time, whether the GPU was loaded then, and whether it was the time before as well."""

    def take_link(self, reading: LinkReading) -> None:
        """Take a reading of the link; times must not fall."""
        narrow = is_narrow(reading.width, reading.expected_width, reading.width_max)
        self._width.judge(reading.time, narrow, self.max_gap_seconds)
        self._forget_before(reading.time - self.max_gap_seconds)
        self._waiting.append((reading.time, is_slow(reading.generation, reading.generation_max)))

    def take_load(self, evidence: str, time: float, loaded: bool) -> None:
        """Take whether the GPU is under load.

        Args:
            evidence: what says so; two kinds of evidence are not mixed.
            time: monotonic seconds; must not fall for one evidence.
            loaded: what ``is_loaded`` says.
        """
        earlier, was_loaded, _ = self._loads.get(evidence, (float("-inf"), False, False))
        lasted = loaded and was_loaded and 0.0 < time - earlier <= self.max_gap_seconds
        self._loads[evidence] = (time, loaded, lasted)
        if lasted:
            for reading in [one for one in self._waiting if earlier <= one[0] <= time]:
                self._generation.judge(*reading, self.max_gap_seconds)
                self._waiting.remove(reading)
        elif not any(one[1] and time - one[0] <= self.max_gap_seconds for one in self._loads.values()):
            self._generation.judge(time, None, self.max_gap_seconds)
            self._waiting.clear()
        self._forget_before(time - self.max_gap_seconds)

    def is_under_load(self, now: float) -> bool:
        """Whether the GPU was under load in the last two readings."""
        return any(lasted and now - time <= self.max_gap_seconds for time, _, lasted in self._loads.values())

    def block(self, time: float) -> Block:
        """The verdicts at a time, and the seconds for which the link was seen to be degraded."""
        width, generation, gap = self._width, self._generation, self.max_gap_seconds
        values = [width.value(time, gap), generation.value(time, gap), width.seconds, generation.seconds]
        return Block(self._layout, values, time)

    def _forget_before(self, time: float) -> None:
        if self._waiting and self._waiting[0][0] < time:  # they are in order
            self._waiting = [one for one in self._waiting if one[0] >= time]
