"""The parts of a node and their numbers, read from a snapshot by what they are and not by labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar, cast, overload

from commwatch_exporters.catalogue import CATALOGUE
from commwatch_exporters.snapshot import Layout, Snapshot

_Kind = TypeVar("_Kind", bound="Part")
_Derived = TypeVar("_Derived")
Identity: TypeAlias = tuple[str, ...]
"""Label values that identify a part among others of its kind."""


@dataclass(frozen=True, slots=True)
class Column(Generic[_Kind]):
    """One number that each part of a kind may have: ``NvLink.state``."""

    kind: type[_Kind]
    metric: str
    """Its row of the catalogue has its meaning, unit and origin."""

    def infos(self, node: Parts) -> Mapping[Identity, Mapping[str, str]]:
        """By identity of the part: the labels of its info; of the column of an info metric."""
        return {part.identity: part.labels for part, _ in node.each(self)}


@dataclass(frozen=True, slots=True)
class KeyedColumn(Generic[_Kind]):
    """Numbers that each part of a kind may have by one more label: ``Gpu.xids``, by the number of the Xid."""

    kind: type[_Kind]
    metric: str
    key: str
    """Name of that label."""

    def numbers(self, node: Parts) -> Mapping[Identity, Mapping[str, float]]:
        """By identity of the part: its numbers by key."""
        found: dict[Identity, dict[str, float]] = {}
        for part, key, number in node.each_keyed(self):
            found.setdefault(part.identity, {})[key] = number
        return found


AnyColumn: TypeAlias = "Column[Any] | KeyedColumn[Any]"


class _OfMetric:
    """Makes the column of a metric when the kind of part is defined.

    Args:
        name: Of the metric, without ``commwatch_``.
    """

    def __init__(self, name: str) -> None:
        self.metric = f"commwatch_{name}"


class Number(_OfMetric):
    """Makes a column: of a class the column itself, of a part its number now; None where it is not read."""

    def __set_name__(self, owner: type[Part], name: str) -> None:
        if left := _other_labels(owner, self.metric):
            raise TypeError(f"{owner.__name__}.{name}: {self.metric} has the labels {left} too")
        self._column = Column(owner, self.metric)
        KIND_OF[self.metric] = owner

    @overload
    def __get__(self, part: None, kind: type[_Kind]) -> Column[_Kind]: ...
    @overload
    def __get__(self, part: Part, kind: type[Part]) -> float | None: ...
    def __get__(self, part: Part | None, kind: type[Part]) -> Column[Any] | float | None:
        return self._column if part is None else part.node.value(self._column, part.identity)


class Info(Number):
    """Makes the column of an info metric; its other labels are labels of the part."""

    def __set_name__(self, owner: type[Part], name: str) -> None:
        self._column = Column(owner, self.metric)
        owner.INFO = self._column
        KIND_OF[self.metric] = owner


class Keyed(_OfMetric):
    """Makes a keyed column: of a class the column itself, of a part its numbers now, by key."""

    def __set_name__(self, owner: type[Part], name: str) -> None:
        left = _other_labels(owner, self.metric)
        if len(left) != 1:
            raise TypeError(f"{owner.__name__}.{name}: expected one more label of {self.metric}, got {left}")
        self._column = KeyedColumn(owner, self.metric, left[0])
        KIND_OF[self.metric] = owner

    @overload
    def __get__(self, part: None, kind: type[_Kind]) -> KeyedColumn[_Kind]: ...
    @overload
    def __get__(self, part: Part, kind: type[Part]) -> Mapping[str, float]: ...
    def __get__(self, part: Part | None, kind: type[Part]) -> KeyedColumn[Any] | Mapping[str, float]:
        return self._column if part is None else part.node.derived(self._column.numbers).get(part.identity, {})


class Label:
    """A label of the part's own series or of its info; empty where neither has it."""

    def __init__(self, label: str = "") -> None:
        """
        Args:
            label: where it is not called like the attribute.
        """
        self._name = label

    def __set_name__(self, owner: type[Part], name: str) -> None:
        self._name = self._name or name

    def __get__(self, part: Part, kind: type[Part]) -> str:
        own = part.labels.get(self._name)
        return part.about.get(self._name, "") if own is None else own


class Part:
    """A part of the node as one of its series names it; equal to another of its kind with the same identity."""

    __slots__ = ("identity", "labels", "node")

    IDENTITY: ClassVar[tuple[str, ...]] = ()
    """Names of the identifying labels."""
    BESIDE: ClassVar[tuple[str, ...]] = ()
    """Names of further labels of its metrics that do not identify it: the index of a GPU, which moves when another one
    is lost."""
    INFO: ClassVar[Column[Any] | None] = None
    """The column of its info metric, if it has one."""

    def __init__(self, node: Parts, labels: Mapping[str, str]) -> None:
        """
        Args:
            labels: those of a series; at least those of the identity.
        """
        self.node = node
        self.labels = labels
        self.identity = self.identity_of(labels)

    @classmethod
    def identity_of(cls, labels: Mapping[str, str]) -> Identity:
        """The values of the identifying labels."""
        return tuple([labels[name] for name in cls.IDENTITY])

    @property
    def about(self) -> Mapping[str, str]:
        """Labels of its info; empty where that is not read."""
        column = type(self).INFO
        return self.node.derived(column.infos).get(self.identity, {}) if column else {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and other.identity == self.identity

    def __hash__(self) -> int:
        return hash(self.identity)


KIND_OF: dict[str, type[Part]] = {}
"""By metric: the kind of part that has it; filled as columns are made."""


def _other_labels(kind: type[Part], metric: str) -> tuple[str, ...]:
    """Labels of a metric that do not belong to the identity of a part.

    Raises:
        TypeError: the metric lacks a label of the identity.
    """
    labels = CATALOGUE[metric].labels
    if not set(kind.IDENTITY) <= set(labels):
        raise TypeError(f"{metric} does not name a {kind.__name__}: it has the labels {labels}")
    return tuple(name for name in labels if name not in kind.IDENTITY + kind.BESIDE)


class _Prepared(NamedTuple):
    """The series of one metric in a layout."""

    parts: tuple[tuple[Part, int], ...]
    """Each with its place in the block."""
    places: Mapping[Identity, int]


def column_of(kind: type[_Kind], metric: str) -> Column[_Kind] | KeyedColumn[_Kind]:
    """The column of a metric that has no name in the kind, because it is never read alone."""
    KIND_OF[metric] = kind
    left = _other_labels(kind, metric)
    return KeyedColumn(kind, metric, left[0]) if left else Column(kind, metric)


class Parts:
    """One snapshot after the other by parts; what is the same in both is not made again."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        """
        Args:
            snapshot: of the first moment.
        """
        self._snapshot = Snapshot(())
        self._prepared: dict[Layout, dict[str, _Prepared]] = {}
        """By layout and metric, only for metrics that are asked for: a dictionary of labels for each of 3,000 series
        takes longer to make than all rules together take to run."""
        self._columns: dict[str, Sequence[tuple[int, _Prepared]]] = {}
        """By metric: the places of the blocks that hold it, each with its series."""
        self._derived: dict[object, object] = {}
        if snapshot is not None:
            self.show(snapshot)

    def show(self, snapshot: Snapshot) -> None:
        """Read from this snapshot from now on; parts that were taken before have its numbers too."""
        if snapshot.layouts != self._snapshot.layouts or snapshot.hidden != self._snapshot.hidden:
            here = set(snapshot.layouts)
            self._prepared = {layout: known for layout, known in self._prepared.items() if layout in here}
            self._columns = {}
        self._snapshot = snapshot
        self._derived = {}

    def derived(self, make: Callable[[Parts], _Derived]) -> _Derived:
        """The result of a function of this snapshot, computed once however often it is requested."""
        if make not in self._derived:
            self._derived[make] = make(self)
        return cast(_Derived, self._derived[make])

    def each(self, column: Column[_Kind]) -> Iterator[tuple[_Kind, float]]:
        """The parts that have a number now, with it."""
        return cast("Iterator[tuple[_Kind, float]]", self.series(column.metric))

    def each_keyed(self, column: Column[_Kind] | KeyedColumn[_Kind]) -> Iterator[tuple[_Kind, str, float]]:
        """The parts that have a number by key now: part, key and number; the key is empty of a column without one."""
        key = column.key if isinstance(column, KeyedColumn) else ""
        for part, number in self.series(column.metric):
            yield cast(_Kind, part), part.labels.get(key, ""), number

    def part(self, kind: type[_Kind], *identity: str) -> _Kind:
        """The part of this identity, whether or not the node has it now."""
        return kind(self, dict(zip(kind.IDENTITY, identity, strict=True)))

    def value(self, column: Column[Any], identity: Identity) -> float | None:
        """The number of one part; None where it is absent."""
        for place, prepared in self._column(column.metric):
            at = prepared.places.get(identity)
            if at is not None and (value := self._snapshot.blocks[place].values[at]) is not None:
                return value
        return None

    def has(self, metric: str, labels: tuple[str, ...]) -> bool:
        """Whether the series with all these labels has a number."""
        return self._snapshot.value(metric, *labels) is not None

    def series(self, metric: str) -> Iterator[tuple[Part, float]]:
        """The parts that have a number in a metric now, with it."""
        for place, prepared in self._column(metric):
            values = self._snapshot.blocks[place].values
            for part, at in prepared.parts:
                value = values[at]
                if value is not None:
                    yield part, value

    def _column(self, metric: str) -> Sequence[tuple[int, _Prepared]]:
        known = self._columns.get(metric)
        if known is None:
            snapshot = self._snapshot
            places = () if metric in snapshot.hidden else snapshot.holders.get(metric, ())
            known = [(place, self._prepare(snapshot.layouts[place], metric)) for place in places]
            self._columns[metric] = known
        return known

    def _prepare(self, layout: Layout, metric: str) -> _Prepared:
        of_layout = self._prepared.setdefault(layout, {})
        known = of_layout.get(metric)
        if known is None:
            names, kind = CATALOGUE[metric].labels, KIND_OF[metric]
            series, places = layout.series, layout.families[metric]
            parts = tuple([(kind(self, dict(zip(names, series[at][1], strict=True))), at) for at in places])
            known = of_layout[metric] = _Prepared(parts, {part.identity: at for part, at in parts})
        return known
