"""How counters moved: for each only the moments at which it changed, as far back as a rule asks."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Collection, Container, Iterable, Mapping
from functools import cache
from itertools import pairwise
from typing import Annotated, TypeAlias

import msgspec

from commwatch.state.records import Timestamp
from commwatch_exporters.catalogue import CATALOGUE

Labels: TypeAlias = tuple[str, ...]
"""Label values of a series, in the order of the catalogue's label names."""

CHANGES_MAX = 64
"""Changes kept of one counter. One that moves faster keeps its latest ones and, of those before, sums over a 32nd of
what is kept, each at the time of its first change: what it rose in a window is then a lower bound."""
_LATEST = 16
"""Changes that are never summed up."""
_SUMS = 32
_BETWEEN_LABELS = "\n"
GAP_SECONDS = 30.0
"""Three evaluations: a metric that was missing for longer may have risen at any time meanwhile."""


Reading: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]


class CounterState(msgspec.Struct):
    """State of one counter that is kept over a restart."""

    metric: str
    labels: Labels
    last: Reading
    rises: list[tuple[Timestamp, Annotated[float, msgspec.Meta(gt=0)]]] = []
    """Seconds since 1970, in order, and by how much."""

    def __post_init__(self) -> None:
        if any(one > next_one for (one, _), (next_one, _) in pairwise(self.rises)):
            raise ValueError(f"the changes of {self.metric} are not in order")


class HistoryState(msgspec.Struct):
    """State that survives a restart: the changes of counters, and the last value of every counter."""

    events_since: Timestamp | None = None
    counters: list[CounterState] = []
    """Those that moved, and events that have happened."""
    still: dict[str, dict[str, Reading]] = {}
    """By metric and label values, one a line: the last values of the others, so that a rise while no daemon ran is
    seen."""
    seen: dict[str, Timestamp] = {}
    """When each metric was there last, seconds since 1970."""


class _Counter:
    """One series: its last number, and by how much it rose when."""

    __slots__ = ("gap_at", "labels", "last", "rises", "times")

    def __init__(self, labels: Labels, value: float) -> None:
        self.labels = labels
        """As they are now: a GPU's index moves when another is lost."""
        self.last = value
        self.times, self.rises = array("d"), array("d")
        """In order."""
        self.gap_at: float | None = None
        """Begin of the last gap after which it had risen."""

    def take(self, value: float, now: float, window: float, unseen_since: float | None, most: float | None) -> None:
        # A counter that reads lower has started again: what it shows has happened since.
        rise = value - self.last if value >= self.last else value
        if most is not None:
            rise = min(rise, most)
        self.last = value
        if not rise:
            return
        if self.times and self.times[-1] > now:  # the wall clock was set back
            self._set_back(now)
        if unseen_since is not None and rise > 1:
            # At some time since then, and one stands for now: what it rose in a window is a lower bound.
            self.gap_at = max(unseen_since, self.times[-1]) if self.times else unseen_since
            self.times.append(self.gap_at)
            self.rises.append(rise - 1)
            rise = 1
        self.times.append(now)
        self.rises.append(rise)
        if len(self.times) > CHANGES_MAX:
            self.forget(now - window)
            self._sum_up(window / _SUMS, _LATEST)

    def _set_back(self, now: float) -> None:
        """The latest change, in what is the future now, was lately, and those before it as long before it as ever."""
        apart = min(self.times[-1] - self.times[-2], GAP_SECONDS) if len(self.times) > 1 else 0.0
        step = self.times[-1] + apart - now
        self.times = array("d", [when - step for when in self.times])
        if self.gap_at is not None:
            self.gap_at -= step

    def _sum_up(self, span: float, latest: int) -> None:
        """Put changes that lie within a span of seconds together, all but the latest."""
        times, rises = array("d"), array("d")
        for when, rise in zip(self.times[:-latest], self.rises[:-latest], strict=True):
            if times and when - times[-1] < span:
                rises[-1] += rise
            else:
                times.append(when)
                rises.append(rise)
        self.times, self.rises = times + self.times[-latest:], rises + self.rises[-latest:]

    def forget(self, until: float) -> None:
        """Forget the changes up to a time."""
        first = bisect_right(self.times, until)
        del self.times[:first], self.rises[:first]

    def increase(self, since: float) -> float:
        return sum(self.rises[bisect_right(self.times, since) :])

    def increase_within(self, since: float) -> float:
        """Without what may have risen before a time.

        The first change after it is what rose since the reading before: one of it came later, and of the others that is
        not known.
        """
        first = bisect_right(self.times, since)
        straddles = first < len(self.times) and self.times[first] - since < GAP_SECONDS
        return self.increase(since) - (max(self.rises[first] - 1, 0.0) if straddles else 0.0)

    def rising_since(self, amount: float) -> float | None:
        left = amount
        for when, rise in zip(reversed(self.times), reversed(self.rises), strict=True):
            left -= rise
            if left <= 0:
                return when
        return None

    def increase_at_most(self, since: float, window: float) -> float:
        """With what was begun before a time and may reach beyond it: a sum, or what rose in a gap."""
        first = bisect_right(self.times, since)
        is_sum = 0 < first <= len(self.times) - _LATEST and self.times[first - 1] + window / _SUMS > since
        is_gap = 0 < first < len(self.times) and self.times[first - 1] == self.gap_at
        return self.increase(since) + (self.rises[first - 1] if is_sum or is_gap else 0.0)


class CounterHistory:
    """The watched counters; those of a GPU are known by its PCI address, whatever its index."""

    def __init__(
        self, windows: Mapping[str, float], events: Collection[str] = (), state: HistoryState | None = None,
        *, since_boot: bool = False,
    ) -> None:  # fmt: skip
        """
        Args:
            windows: by metric: seconds for which its changes are kept.
            events: those of which a series is not there before the first event. Such a series counts from 0 where
                others of its metric, or of another of these, were there at an earlier evaluation, if it is not known
                which of its events are recent.
            since_boot: all that a counter shows when it is seen first has happened now: for a single evaluation, which
                cannot know what is new.
        """
        self.since_boot = since_boot
        known = state or HistoryState()
        self._windows = windows
        self._events = frozenset(events)
        self._events_since = known.events_since
        """First evaluation with a series of an event."""
        self._counters: dict[str, dict[Labels, _Counter]] = {metric: {} for metric in windows}
        """By metric and identity."""
        self._moved: dict[str, dict[Labels, _Counter]] = {metric: {} for metric in windows}
        """Counters that have changed within what is kept, in the order in which they began to."""
        self._seen = {metric: when for metric, when in known.seen.items() if metric in windows}
        still = (
            CounterState(metric, tuple(labels.split(_BETWEEN_LABELS)) if labels else (), last)
            for metric, counters in known.still.items()
            for labels, last in counters.items()
        )
        for one in (*known.counters, *still):
            if one.metric in windows:
                self._restore(one)

    def _restore(self, kept: CounterState) -> None:
        identity = _identity(kept.metric, kept.labels)
        if kept.metric in CATALOGUE and len(kept.labels) != len(CATALOGUE[kept.metric].labels):
            raise ValueError(f"{kept.metric} has no labels like {kept.labels}")
        if identity in self._counters[kept.metric]:
            raise ValueError(f"{kept.metric} of {identity} is there twice")
        counter = self._counters[kept.metric][identity] = _Counter(kept.labels, kept.last)
        for when, rise in kept.rises:
            counter.times.append(when)
            counter.rises.append(rise)
        if counter.rises:
            self._moved[kept.metric][identity] = counter

    @property
    def state(self) -> HistoryState:
        """To keep in the state directory."""
        kept: list[CounterState] = []
        still: dict[str, dict[str, float]] = {}
        for metric, counters in self._counters.items():
            is_event = metric in self._events
            for counter in counters.values():
                if counter.rises or (counter.last and is_event):
                    rises = list(zip(counter.times, counter.rises, strict=True))
                    kept.append(CounterState(metric, counter.labels, counter.last, rises))
                elif not is_event:  # what has not happened yet counts from 0 anyway
                    still.setdefault(metric, {})[_BETWEEN_LABELS.join(counter.labels)] = counter.last
        return HistoryState(self._events_since, kept, still, dict(self._seen))

    @property
    def metrics(self) -> Iterable[str]:
        """Those that are watched."""
        return self._windows.keys()

    def unseen_since(self, metric: str, now: float) -> float | None:
        """When a metric was there last, where that is long ago; None where it was there all the time, or never."""
        seen = self._seen.get(metric)
        return seen if seen is not None and now - seen > GAP_SECONDS else None

    def saw(self, metrics: Iterable[str], now: float) -> None:
        """These metrics are there now."""
        self._seen.update(dict.fromkeys(metrics, now))

    def take(
        self, metric: str, labels: Labels, value: float, now: float, unseen_since: float | None = None,
        recent: float | None = None,
    ) -> None:  # fmt: skip
        """Take in what a counter shows.

        Args:
            now: seconds since 1970.
            unseen_since: of ``unseen_since``.
            recent: by how much it rose lately, where that is known, which counts of one that was not seen before. What
                events rise by beyond it is old.
        """
        counters, identity = self._counters[metric], _identity(metric, labels)
        counter = counters.get(identity)
        if counter is None:
            is_new = self._is_born(metric, now) and (recent is None or self.since_boot)
            counter = counters[identity] = _Counter(labels, 0.0 if is_new else value - min(value, recent or 0.0))
        counter.labels = labels
        if counter.last == value:
            return
        most = recent if metric in self._events else None
        counter.take(value, now, self._windows[metric], unseen_since, most)
        if counter.rises:
            self._moved[metric][identity] = counter

    def forget(self, now: float) -> None:
        """Forget changes that are older than any rule's window.

        Args:
            now: seconds since 1970.
        """
        for metric, moved in self._moved.items():
            if not moved:
                continue
            oldest = now - self._windows[metric]
            for identity in [identity for identity, one in moved.items() if one.times[0] <= oldest]:
                moved[identity].forget(oldest)
                if not moved[identity].times:
                    del moved[identity]

    def retain(self, metric: str, present: Container[Labels]) -> None:
        """Forget the counters of a metric that are not there any more and did not move: interfaces come and go.

        An event that has happened stays known, or it would count as new when its series comes back.

        Args:
            present: labels of all its series.
        """
        if metric in self._events:
            return
        counters = self._counters[metric]
        for identity in [key for key, one in counters.items() if not one.rises and one.labels not in present]:
            del counters[identity]

    def _is_born(self, metric: str, now: float) -> bool:
        """Whether a series that was not seen before is the first event of its kind, and not an old one found now."""
        if self.since_boot:
            return True
        if metric not in self._events:
            return False
        if self._events_since is None:
            self._events_since = now
        return now > self._events_since

    def last(self, metric: str) -> list[tuple[Labels, float]]:
        """The last values of the counters of a watched metric."""
        return [(counter.labels, counter.last) for counter in self._counters[metric].values()]

    def moved(self, metric: str) -> list[Labels]:
        """The counters of a watched metric that changed within what is kept; the others need not be read.

        Raises:
            KeyError: the metric is not watched.
        """
        return [counter.labels for counter in self._moved[metric].values()]

    def increase(
        self, metric: str, labels: Labels, now: float, window: float, *, at_most: bool = False, within: bool = False
    ) -> float | None:  # fmt: skip
        """By how much a counter rose in the last seconds; None for one that was never seen.

        Args:
            now: seconds since 1970.
            window: in seconds.
            at_most: of one that moves fast, no less than it rose instead of no more.
            within: of one that moves fast, without what may have risen before the window: a change is the rise since
                the reading before, which may be older than the window.

        Raises:
            ValueError: the window is longer than what is kept of this metric.
        """
        kept = self._windows.get(metric, 0.0)
        if window > kept:
            raise ValueError(f"changes of {metric} are kept for {kept} s, not {window} s")
        counter = self._counters[metric].get(_identity(metric, labels))
        if counter is None:
            return None
        if within:
            return counter.increase_within(now - window)
        return counter.increase_at_most(now - window, kept) if at_most else counter.increase(now - window)

    def first_rise(self, metrics: Iterable[str], component: str) -> float | None:
        """When the first of the changes that are kept of some counters of a component came; None where there is none.

        Args:
            metrics: of which those that are not watched have none.
            component: as the labels name it that are its for good: ``0000:17:00.0/3`` of an NVLink.
        """
        times = [
            counter.times[0]
            for metric in metrics
            for identity, counter in self._moved.get(metric, {}).items()
            if f"{'/'.join(identity)}/".startswith(f"{component}/")
        ]
        return min(times, default=None)

    def rising_since(self, metric: str, labels: Labels, amount: float) -> float | None:
        """Since when a counter rose by this amount; None where it was seen to rise by less.

        Args:
            metric: watched here, or nothing is known of it.
            amount: above 0.
        """
        counter = self._counters.get(metric, {}).get(_identity(metric, labels))
        return None if counter is None else counter.rising_since(amount)


@cache
def _has_index(metric: str) -> bool:
    known = CATALOGUE.get(metric)
    return known is not None and known.labels[:2] == ("gpu", "pci_bus_id")


def _identity(metric: str, labels: Labels) -> Labels:
    """The permanent identity of a series."""
    return labels[1:] if _has_index(metric) else labels
