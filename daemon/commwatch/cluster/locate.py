"""Which part of the network is slow, from what pairs of nodes measured; pure.

A cell is what went from one node to another one on a rail. It is bad if it is below a share of what is usual in its
class, failed, or went over a socket where others did not. Where many pairs of good nodes are slow as a whole, the paths
between them are slower, and each such pair is compared with its own level; a cell of a slower path that is not bad
says nothing of its ends. A leaf or an uplink is named where most of its cells are bad; these are put aside. An
end of cells (node, rail, direction) is named where nearly all that is left of it is bad while its partners are good
elsewhere. docs/using/cluster.md has the rules and how often they are right.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from statistics import median
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from commwatch.cluster.node_report import Direction, Fault, Kind
from commwatch.cluster.run_file import Measured, Rail, Run
from commwatch.cluster.schedule import NO_LEAF, REPEATED_MEMBERS, Suspect

SLOW_SHARE: Final = 0.85
"""Below this share of what is usual in its class, a cell is slow; noise is about 3 %."""
SLOW_LATENCY: Final = 1.5
"""A latency is slow from this multiple of the usual one on, as within a node."""
FEW_LATENCIES: Final = 16
"""Up to this number, as of 3 and 4 nodes, latencies are judged only where the slow ones are as far above the others:
over sockets of a busy host they spread evenly over a factor of 5, and a node would be named by chance."""
MOST: Final = 0.6
"""Share of the cells of a leaf that must be bad."""
UPLINK_MOST: Final = 0.8
"""So of an uplink: other jobs slow a third or a half of what crosses a busy one, a fault slows all."""
FEW: Final = 0.4
"""Share of the inner cells of a leaf below which the uplink is the cause and not the leaf."""
LEAF_CELLS: Final = 4
"""Fewer cells are not enough for a verdict on a leaf."""
LEAF_NODES: Final = 3
"""Nor do those of fewer nodes: one bad NIC would be its leaf."""
NODE_SHARE: Final = 0.75
"""From this share of the rails of a node on, the node is named."""
DIPS: Final = 0.04
"""Share of the cells of a healthy end that moments make bad in rough weather."""
FALSE_ENDS: Final = 0.009
"""Expected number of healthy ends that chance names in a run, at most."""
MOST_CELLS: Final = 5
"""Bad cells that name an end however many ends a run has."""
FEW_ENDS: Final = 16
"""Of so few, two bad cells name one, as in a few pairs that were measured by hand; a probe measures it again."""
BAD_PER_GOOD: Final = 4
"""Number of bad cells that an end needs for each good one."""
CLEARED: Final = 2
"""Bad cells of an end whose partners must be good with others."""
SLOWER_SHARE: Final = 0.1
"""Share of the pairs of good nodes that must be slow for their paths to be slower ones; moments slow 2 %."""
SLOWER_SHARE_FEW_RAILS: Final = 0.3
"""The share with fewer rails than can distinguish a rail from a path: faulty uplinks slow less."""
SLOWER_PAIRS: Final = 3
SLOWER_NODES: Final = 1 / 8
"""Share of the nodes that would have to be at fault at once if their paths were not slower ones."""
PATH_RAILS: Final = 4
"""From this number of rails on, a fault of most of them is of the path or the node, and not of a NIC."""
FEW_UNPROVEN: Final = 1 / 4
"""Share of the nodes up to which those are listed that met others only over slower paths; more are one line."""
SURE_ISLANDS: Final = 8
"""Pairs beyond one for each node that must agree with two islands; each would by chance in half of the cases."""
SAME_LEVEL: Final = 0.1
"""Pairs this near to the usual level of slower paths cross between islands; others may be moments."""
CLASS_VALUES: Final = 3
"""A class with fewer values has no usual one."""
MANY_VALUES: Final = 200
"""Of more, the fastest tenth says what is fast; of fewer, the number that a pair of nodes with 8 rails has to spare:"""
FAST_VALUES: Final = 9


class Named(msgspec.Struct, frozen=True):
    """A part that is at fault."""

    kind: Kind
    fault: Fault
    elements: tuple[str, ...]
    """A node or a leaf; two where it may be either, or a pair; empty for the network as a whole."""
    rails: tuple[Rail, ...]
    direction: Direction
    """Seen from the first element."""
    ratio: float | None
    """Median of its bad cells to the usual one; None where nothing was measured."""
    measurements: int
    """Bad measurements behind the verdict."""
    reason: str
    """Why it failed, or the transport; ``expected`` where the rate is the measure and not others; else empty."""


class Figures(msgspec.Struct, frozen=True):
    """The rates of the cells of a class."""

    scope: Literal["leaf", "leaves"]
    """Within a leaf or between leaves; without groups all is within one."""
    models: tuple[str, str]
    measurements: int
    low: float
    """Bytes per second of a rail, one direction."""
    usual: float
    high: float
    latency: float | None
    """Seconds, usual."""


class Whole(msgspec.Struct, frozen=True):
    """The capacity of the network, by the cells that are not bad."""

    node: float
    """Bytes per second from one node to another one, all rails together; usual."""
    low: float
    """All but a tenth carry more."""
    high: float
    expected: float | None
    """The rate that they should have together; None if no rate is known."""
    inside: float | None
    """Bytes per second between the GPUs of a node."""
    is_bottleneck: bool
    """Whether no part is at fault, and a node carries less to another one than between its own GPUs."""


class Slower(msgspec.Struct, frozen=True):
    """Paths that are slower as a whole, between nodes that are good with others: pods, a tapered spine, islands."""

    ratio: float
    """Usual share of what other paths of their class carry."""
    pairs: int
    islands: tuple[tuple[str, ...], ...]
    """The two groups of nodes between which all slower paths go; empty where they are no two."""


class Verdict(msgspec.Struct, frozen=True):
    nodes: int
    """That measured anything, or failed to."""
    pairs: int
    named: tuple[Named, ...]
    """The largest parts first."""
    open: tuple[Named, ...]
    """Pairs of which either node may be at fault: a witness would decide. Nodes that met nobody but over slower paths;
    the network where these are many, with their number in place of measurements."""
    paths: int
    """Bad cells between ends that are good elsewhere: one way through the network, or a moment. Counted, not named."""
    figures: tuple[Figures, ...]
    whole: Whole | None
    suspects: tuple[Suspect, ...]
    """Who is to be measured with witnesses."""
    doubtful: Mapping[int, frozenset[Rail]]
    """Members with a bad cell that no leaf explains, and on which rails: no witnesses there."""
    slower: Slower | None = None
    """None where all paths of a class carry the same."""
    sides: tuple[int, ...] = ()
    """Of each member, equal where no slower path is between two; empty without slower paths."""


class Cell(NamedTuple):
    """The measurement from one node to another one on a rail."""

    source: int
    destination: int
    rail: Rail
    is_bad: bool
    ratio: float | None
    reason: str
    measured: int
    """Identity of the measurement: one may say both directions."""
    is_path: bool = False
    """Whether it is as good as its slower path lets it be: its ends may be as slow as that."""


class _End(NamedTuple):
    """Where cells leave or enter a node."""

    member: int
    rail: Rail
    sends: bool


class _LeafFault(NamedTuple):
    """A leaf switch or an uplink that is at fault on a rail."""

    kind: Kind
    elements: tuple[str, ...]
    rail: Rail
    direction: Direction
    cells: list[Cell]
    """The bad ones, which it explains."""


@dataclass(slots=True)
class _EndFaults:
    """The faults of the cells' endpoints, as far as no leaf explains them."""

    ends: dict[_End, Sequence[Cell]] = field(default_factory=dict)
    """At fault, with all of their cells."""
    open: list[Cell] = field(default_factory=list)
    """Of which either end may be at fault."""
    paths: int = 0
    suspects: dict[_End, int] = field(default_factory=dict)
    """Witnesses that they need."""
    doubtful: Iterable[_End] = ()


def locate(run: Run) -> Verdict:
    """Name what is at fault, from the rounds that are there; after two of them the suspects are those of round 3."""
    classes = _classes(run)
    leaves = [one.leaf for one in run.members]
    names = [one.name for one in run.members]
    rails: dict[int, set[Rail]] = defaultdict(set)
    for one in run.measured:
        rails[one.first].add(one.rail)
        rails[one.second].add(one.rail)
    named: list[Named] = []
    opened: list[Named] = []
    paths = 0
    suspects: dict[int, dict[Rail, int]] = defaultdict(dict)
    doubtful: dict[int, set[Rail]] = defaultdict(set)
    paths_found = _paths(run, classes)
    blamed: set[tuple[int | str, Rail]] = set()
    """Members and leaves with their rails: what failed or goes over a socket is not named as slow as well."""
    unsettled: set[tuple[int, int, Rail]] = set()
    """So for open pairs."""
    ends = 2 * sum(map(len, rails.values()))
    for fault, cells in _cells(run, classes, paths_found):
        left = [one for one in cells if not (one.is_bad and (one[:3] in unsettled or blamed & _parts(one, leaves)))]
        leaf_faults = list(_leaf_faults(left, leaves))
        explained = {cell for one in leaf_faults for cell in one.cells}
        of_ends = _end_faults(
            [one for one in left if not (one.is_bad and one in explained)], ends, len(rails), paths_found
        )
        named += _named_leaves(fault, leaf_faults)
        named += _named_nodes(fault, of_ends.ends, names, rails)
        opened += _opened(fault, of_ends.open, names)
        blamed |= {(leaf, one.rail) for one in leaf_faults for leaf in one.elements}
        blamed |= {(end.member, end.rail) for end in of_ends.ends}
        unsettled |= {one[:3] for one in of_ends.open}
        paths += of_ends.paths
        for end, witnesses in of_ends.suspects.items():
            suspects[end.member][end.rail] = max(suspects[end.member].get(end.rail, 0), witnesses)
        for end in of_ends.doubtful:
            doubtful[end.member].add(end.rail)
    for member in paths_found.unproven:
        suspects[member].update(dict.fromkeys(rails[member], 1))
    opened += _met_nobody(paths_found, names, rails)
    whole = _whole(run, classes, is_fine=not named and not opened)
    if len(rails) == 2:  # there is no third one to tell them apart
        named, opened = named + opened, []
    if whole is not None and whole.expected is not None and whole.node < SLOW_SHARE * whole.expected and not named:
        both = tuple(names[place] for place in sorted(rails)) if len(rails) == 2 else ()
        of = _sorted_rails(set().union(*rails.values()))
        ratio = whole.node / whole.expected
        # The rates are those of RDMA adapters, over which nothing went.
        socket = "" if run.expected is not None else _socket_of_all(run)
        what: tuple[Kind, Fault] = ("pair" if both else "network", "transport" if socket else "bandwidth")
        named.append(Named(*what, both, of, "both", ratio, len(run.measured), socket or "expected"))
    return Verdict(
        nodes=len(rails),
        pairs=len({(one.round, one.first, one.second) for one in run.measured}),
        named=tuple(sorted(named, key=lambda one: (_KINDS.index(one.kind), one.elements))),
        open=tuple(opened),
        paths=paths,
        figures=tuple(_figures(run, classes)),
        whole=whole,
        suspects=tuple(Suspect(member, frozenset(of), max(of.values())) for member, of in sorted(suspects.items())),
        doubtful={member: frozenset(of) for member, of in sorted(doubtful.items())},
        slower=paths_found.slower,
        sides=paths_found.sides,
    )


def _socket_of_all(run: Run) -> str:
    """The transport if all of the run went over sockets; else empty."""
    over = {one.transport for one in run.measured if not one.failed}
    return min(over) if over and all(_is_socket(one) for one in over) else ""


def _is_socket(transport: str) -> bool:
    return "socket" in transport.lower()


_KINDS: Final[tuple[Kind, ...]] = ("network", "leaf", "uplink", "node", "nic", "pair")


# --- cells ---


def _cells(run: Run, classes: Sequence[_Class], paths: _Paths) -> Iterator[tuple[Fault, list[Cell]]]:
    """The cells by what may be wrong with them, what explains other faults first."""
    if any(one.failed for one in run.measured):
        yield "failed", [cell for one in run.measured for cell in _both_ways(one, bool(one.failed), None, one.failed)]
    over = [(one, _is_socket(one.transport)) for one in run.measured if one.transport and not one.failed]
    if len({bad for _, bad in over}) > 1:
        yield "transport", [cell for one, bad in over for cell in _both_ways(one, bad, None, one.transport)]
    yield "bandwidth", list(_bandwidth_cells(run, classes, paths))
    yield "latency", list(_latency_cells(run, classes, "latency"))
    if any(one.adapter_latency is not None for one in run.measured):
        yield "latency", list(_latency_cells(run, classes, "adapter_latency"))


def cells_of(run: Run) -> Iterator[tuple[Fault, Sequence[Cell]]]:
    """The cells of a run by what may be wrong with them; those of bandwidth and latency have their ratio."""
    classes = _classes(run)
    return _cells(run, classes, _paths(run, classes))


def _both_ways(one: Measured, bad: bool, ratio: float | None, reason: str = "") -> tuple[Cell, Cell]:
    return (
        Cell(one.first, one.second, one.rail, bad, ratio, reason, id(one)),
        Cell(one.second, one.first, one.rail, bad, ratio, reason, id(one)),
    )


_Class: TypeAlias = tuple[bool, str, str, float | None, bool]
"""Whether between leaves, models, rate of the rail, whether of all rails together."""


def _classes(run: Run) -> list[_Class]:
    known: dict[tuple[int, int, Rail], _Class] = {}
    has_rates = any(one.rates for one in run.members)
    found = []
    for one in run.measured:
        key = (one.first, one.second, one.rail if has_rates or one.rail is None else 0)
        of = known.get(key)
        if of is None:
            first, second = run.members[one.first], run.members[one.second]
            low, high = sorted((first.model, second.model))
            of = known[key] = (first.leaf != second.leaf, low, high, _rate(run, one), one.rail is None)
        found.append(of)
    return found


def _rate(run: Run, one: Measured) -> float | None:
    """Bytes per second that a rail should carry, one direction; None: not known."""
    if run.expected is not None or one.rail is None:
        return run.expected
    rates = [run.members[place].rates for place in (one.first, one.second)]
    return min(of[one.rail] for of in rates) if all(one.rail < len(of) for of in rates) else None


class _Speed(NamedTuple):
    """The value by which a cell is compared: the larger the better."""

    one: Measured
    of: tuple[_Class, bool]
    """Its class, and whether it is of one direction."""
    source: int
    destination: int
    value: float


def _speeds(run: Run, classes: Sequence[_Class]) -> Iterator[_Speed]:
    """Bandwidths; one of both directions together counts once."""
    for one, of in zip(run.measured, classes, strict=True):
        if one.forward is not None:
            yield _Speed(one, (of, True), one.first, one.second, one.forward)
        if one.backward is not None:
            yield _Speed(one, (of, True), one.second, one.first, one.backward)
        if one.both is not None:
            yield _Speed(one, (of, False), one.first, one.second, one.both)


def _usual_speeds(run: Run, speeds: Iterable[_Speed], share: float) -> dict[tuple[_Class, bool], float]:
    """The usual value in each class that has enough values."""
    values: dict[tuple[_Class, bool], list[float]] = defaultdict(list)
    for one in speeds:
        if _is_usual(run, one.one):
            values[one.of].append(one.value)
    return {key: usual for key, of in values.items() if (usual := _usual(of, share)) is not None}


def _bandwidth_cells(run: Run, classes: Sequence[_Class], paths: _Paths) -> Iterator[Cell]:
    speeds = list(_speeds(run, classes))
    usual = _usual_speeds(run, speeds, SLOW_SHARE)
    best: dict[tuple[object, ...], float] = defaultdict(float)
    for (of, is_one_way), value in usual.items():
        best[(*of[1:], is_one_way)] = max(value, best[(*of[1:], is_one_way)])
    for one in speeds:
        if (of_class := usual.get(one.of)) is None:
            continue
        expected = of_class * paths.share(one.source, one.destination)
        ratio = one.value / expected
        is_bad = ratio < SLOW_SHARE
        is_path = not is_bad and one.value < SLOW_SHARE * best[(*one.of[0][1:], one.of[1])]
        cell = Cell(one.source, one.destination, one.one.rail, is_bad, ratio, "", id(one.one), is_path)
        yield cell
        if not one.of[1]:
            yield cell._replace(source=one.destination, destination=one.source)


def _latency_cells(
    run: Run, classes: Sequence[_Class], of: Literal["latency", "adapter_latency"]
) -> Iterator[Cell]:  # fmt: skip
    speeds = [
        _Speed(one, (key, True), one.first, one.second, 1 / latency)
        for one, key in zip(run.measured, classes, strict=True)
        if (latency := getattr(one, of)) is not None
    ]
    usual = _usual_speeds(run, speeds, 1 / SLOW_LATENCY)
    paths = _paths_of(run, speeds, usual, 1 / SLOW_LATENCY)
    # An end adds its latency on a slower path, too.
    ratios = [
        (one, speed * paths.share(one.source, one.destination) / one.value)
        for one in speeds
        if (speed := usual.get(one.of)) is not None
    ]
    slow = [ratio for _, ratio in ratios if ratio > SLOW_LATENCY]
    well = [ratio for _, ratio in ratios if ratio <= SLOW_LATENCY]
    if len(ratios) <= FEW_LATENCIES and slow and well and min(slow) < SLOW_LATENCY * max(well):
        return
    for one, ratio in ratios:
        yield from _both_ways(one.one, ratio > SLOW_LATENCY, ratio)


# --- slower paths ---


class _Paths(NamedTuple):
    """How fast pairs are as a whole."""

    slow: Mapping[tuple[int, int], float]
    """The expected rate of a rail of a pair on a slower path, as a share of the usual one."""
    slower: Slower | None
    sides: tuple[int, ...]
    unproven: tuple[int, ...]
    """Members that met no other on a path that is not slower."""
    across: AbstractSet[tuple[int, int]] = frozenset()
    """Pairs of few nodes without groups that are slow as a whole, for a reason that is not known yet."""

    def share(self, source: int, destination: int) -> float:
        """1.0 on a path that is not slower."""
        return self.slow.get((min(source, destination), max(source, destination)), 1.0) if self.slow else 1.0


def _paths(run: Run, classes: Sequence[_Class]) -> _Paths:
    speeds = list(_speeds(run, classes))
    return _paths_of(run, speeds, _usual_speeds(run, speeds, SLOW_SHARE), SLOW_SHARE)


def _paths_of(
    run: Run, speeds: Iterable[_Speed], usual: Mapping[tuple[_Class, bool], float], share: float
) -> _Paths:  # fmt: skip
    """Pairs that are slow on most rails though both nodes are good with others, where they are many.

    Args:
        run: whose leaves count where it has few rails.
        share: of the usual one, below which a cell is bad.
    """
    ratios: dict[tuple[int, int], list[float]] = defaultdict(list)
    rails: dict[tuple[int, int], set[Rail]] = defaultdict(set)
    for one in speeds:
        if (of_class := usual.get(one.of)) is not None:
            pair = (min(one.source, one.destination), max(one.source, one.destination))
            ratios[pair].append(one.value / of_class)
            rails[pair].add(one.one.rail)
    levels = {pair: median(of) for pair, of in ratios.items()}
    limit = math.sqrt(share)
    good = {member for pair, level in levels.items() if level >= limit for member in pair}
    leaves = [one.leaf for one in run.members]
    # Within a leaf no path is slower than another one.
    crossing = [pair for pair in levels if leaves[pair[0]] != leaves[pair[1]] or leaves[pair[0]] == NO_LEAF]
    below = {pair: levels[pair] for pair in crossing if levels[pair] < limit}
    slow = {pair: level for pair, level in below.items() if pair[0] in good and pair[1] in good}
    has_rails = all(len(rails[pair]) >= PATH_RAILS for pair in below)
    least = (SLOWER_SHARE if has_rails else SLOWER_SHARE_FEW_RAILS) * sum(a in good and b in good for a, b in crossing)
    touched = [{leaves[member] for member in pair} for pair in slow]
    of_one_leaf = not has_rails and any(all(leaf in one for one in touched) for leaf in set(leaves) - {NO_LEAF})
    if len(slow) < max(SLOWER_PAIRS, least) or of_one_leaf:
        members = len({member for pair in levels for member in pair})
        if not has_rails or _disjoint(below) < max(SLOWER_PAIRS, members * SLOWER_NODES):
            is_open = members <= REPEATED_MEMBERS and has_rails
            return _Paths({}, None, (), (), {pair for pair in below if is_open and leaves[pair[0]] == NO_LEAF})
        slow = below
    low = sorted(slow.values())[len(slow) // 10]
    usual_level = median(slow.values())
    expected = {
        pair: level if len(rails[pair]) >= PATH_RAILS and level >= share * low else low for pair, level in below.items()
    }
    crosses = {pair: level < limit for pair, level in levels.items()
               if level >= limit or abs(level / usual_level - 1) < SAME_LEVEL}  # fmt: skip
    sides, islands = _sides(run, crosses)
    unproven = tuple(sorted({member for pair in expected for member in pair} - good))
    return _Paths(expected, Slower(usual_level, len(slow), islands), sides, unproven)


def _disjoint(pairs: Iterable[tuple[int, int]]) -> int:
    """The least number of pairs without a common member: as many nodes would have to be at fault."""
    taken: set[int] = set()
    for first, second in pairs:
        if first not in taken and second not in taken:
            taken |= {first, second}
    return len(taken) // 2


def _sides(
    run: Run, crosses: Mapping[tuple[int, int], bool]
) -> tuple[tuple[int, ...], tuple[tuple[str, ...], ...]]:  # fmt: skip
    """The side of each member, and the two islands if no pair contradicts them.

    Args:
        run: nodes of a leaf are on one side.
        crosses: whether a pair goes over a slower path.
    """
    near: dict[int, list[tuple[int, int]]] = defaultdict(list)
    of_leaf: dict[str, int] = {}
    links = [(*pair, int(slow)) for pair, slow in crosses.items()]
    for member, one in enumerate(run.members):
        if one.leaf != NO_LEAF and (first := of_leaf.setdefault(one.leaf, member)) != member:
            links.append((first, member, 0))
    for first, second, slow in sorted(links, key=lambda link: link[2]):
        near[first].append((second, slow))
        near[second].append((first, slow))
    sides: dict[int, int] = {}
    for start in range(len(run.members)):
        if start in sides:
            continue
        sides[start] = 2 * start
        waiting = [start]
        for member in waiting:
            for other, slow in near[member]:
                if other not in sides:
                    sides[other] = sides[member] ^ slow
                    waiting.append(other)
    taken = sorted({sides[member] for member in near})
    is_sure = len(links) - len(near) >= SURE_ISLANDS
    is_whole = is_sure and len(taken) == 2 and all(sides[a] ^ sides[b] == slow for a, b, slow in links)
    islands = [tuple(one.name for place, one in enumerate(run.members) if sides[place] == side) for side in taken]
    return tuple(sides[member] for member in range(len(run.members))), tuple(islands) if is_whole else ()


def _met_nobody(paths: _Paths, names: Sequence[str], rails: Mapping[int, Collection[Rail]]) -> Iterator[Named]:
    """Nodes that were slow with all that they met, where paths are slower than others: they, or their paths.

    Args:
        rails: that each member measured.
    """
    levels: dict[int, list[float]] = defaultdict(list)
    for pair, level in paths.slow.items():
        for member in pair:
            levels[member].append(level)
    found = [
        Named("node", "bandwidth", (names[one],), _sorted_rails(rails[one]), "both", median(levels[one]),
              len(levels[one]), "")
        for one in paths.unproven
    ]  # fmt: skip
    if len(found) <= FEW_UNPROVEN * len(rails):
        yield from found
    else:
        of = _sorted_rails(set().union(*rails.values()))
        ratio = median(one.ratio for one in found if one.ratio is not None)
        yield Named("network", "bandwidth", (), of, "both", ratio, len(found), "")


def _is_usual(run: Run, one: Measured) -> bool:
    """Whether it counts for what is usual: round 3 has the suspects."""
    return one.round <= 2 or len(run.members) <= REPEATED_MEMBERS


def _usual(values: Sequence[float], share: float = SLOW_SHARE) -> float | None:
    """The median of what is not far below the fastest: most paths may be slower, and half of a small run slow."""
    count = len(values)
    if count < CLASS_VALUES:
        return None
    fastest = max(1, count // 10 if count > MANY_VALUES else min(FAST_VALUES, count // 10))
    high = sorted(values)[count - fastest]
    return median(value for value in values if value >= share * high)


# --- who is at fault ---


def _enough(ends: int) -> int:
    """Bad cells that name an end: as many as do not occur together by chance in a run with this number of ends."""
    return min(MOST_CELLS, max(2, math.ceil(math.log(ends / FALSE_ENDS) / math.log(1 / DIPS)))) if ends else 2


def _end_faults(cells: Sequence[Cell], ends: int, nodes: int, paths: _Paths) -> _EndFaults:
    """The ends of which nearly all cells are bad; those with too few to say so, and how many more these need.

    Args:
        cells: that no leaf explains.
    """
    enough = _enough(ends)
    bad = [one for one in cells if one.is_bad]
    of_end: dict[_End, list[Cell]] = {end: [] for one in bad for end in _ends(one)}
    for one in cells if bad else ():
        if one.is_path:
            continue
        # A plain tuple equals an end, and is made faster.
        if (sent := of_end.get((one.source, one.rail, True))) is not None:  # type: ignore[call-overload]
            sent.append(one)
        if (received := of_end.get((one.destination, one.rail, False))) is not None:  # type: ignore[call-overload]
            received.append(one)
    found = _EndFaults(doubtful=list(of_end))
    good = {end: sum(not one.is_bad for one in of) for end, of in of_end.items()}
    left = {end: [one for one in of if one.is_bad] for end, of in of_end.items()}
    # Of few nodes a half may be an island: one that is slow with no more nodes than that may be on the other one.
    half = nodes // 2 + 1
    few = {end for end, of in left.items() if (pairs := _pairs(of)) and pairs <= paths.across and len(pairs) < half}
    for end in _guilty(left, good, 2 if ends <= FEW_ENDS else enough, few):
        found.ends[end] = own = [one for one in of_end[end] if one.is_bad]
        if len(own) < enough:
            found.suspects[end] = enough - len(own)
    for end, of in left.items():
        if of and len(of) > (1 if nodes <= REPEATED_MEMBERS else 2) * good[end]:
            missing = half - len(_pairs(of)) if end in few else 0
            found.suspects[end] = max(1, enough - len(of), BAD_PER_GOOD * good[end] - len(of), missing)
    for one in bad:
        if any(end in found.ends for end in _ends(one)):
            continue
        if any(not good[end] for end in _ends(one)):
            found.open.append(one)
        else:
            found.paths += 1
    return found


def _pairs(cells: Iterable[Cell]) -> set[tuple[int, int]]:
    return {(min(one.source, one.destination), max(one.source, one.destination)) for one in cells}


def _guilty(
    left: dict[_End, list[Cell]], good: Mapping[_End, int], enough: int, unsure: AbstractSet[_End]
) -> Iterator[_End]:  # fmt: skip
    """The ends that are at fault, the surest first; they and the cells that they explain are taken out of what is left.

    Args:
        enough: bad cells that name an end.
        unsure: ends that are not named.
    """
    while True:
        likely = {end for end, of in left.items() if _is_likely(of, good[end], enough)}
        at_fault = {end for end in likely - unsure if _cleared(end, left[end], good, likely) >= CLEARED}
        if not at_fault:
            return
        yield from at_fault
        for end in at_fault:
            del left[end]
        for end, of in left.items():
            left[end] = [one for one in of if _other(one, end) not in at_fault]


def _is_likely(bad: Sequence[Cell], good: int, enough: int) -> bool:
    """Whether an end has more bad cells, with more than one partner, than moments can explain."""
    return len(bad) >= max(enough, BAD_PER_GOOD * good) and len(_pairs(bad)) > 1


def _cleared(end: _End, bad: Iterable[Cell], good: Mapping[_End, int], likely: AbstractSet[_End]) -> int:
    """How many bad cells of an end have a partner that is good with others, and is not likely at fault."""
    return sum(good[other] > 0 and other not in likely for one in bad for other in [_other(one, end)])


def _ends(cell: Cell) -> tuple[_End, _End]:
    return _End(cell.source, cell.rail, True), _End(cell.destination, cell.rail, False)


def _other(cell: Cell, end: _End) -> _End:
    sending, receiving = _ends(cell)
    return receiving if end.sends else sending


def _parts(cell: Cell, leaves: Sequence[str]) -> set[tuple[int | str, Rail]]:
    """Nodes and leaves of a cell, with its rail."""
    ends = (cell.source, cell.destination)
    return {(part, cell.rail) for end in ends for part in (end, leaves[end])}


def _leaf_faults(cells: Sequence[Cell], leaves: Sequence[str]) -> Iterator[_LeafFault]:
    """Leaf switches first, then uplinks from what these do not explain, the one of which most is bad first."""
    if len(set(leaves)) < 2 or not any(one.is_bad for one in cells):
        return
    inner: dict[tuple[str, Rail], list[Cell]] = defaultdict(list)
    outer: dict[tuple[str, Rail, bool], list[Cell]] = defaultdict(list)
    for one in cells:
        here, there = leaves[one.source], leaves[one.destination]
        if here == there != NO_LEAF:
            inner[here, one.rail].append(one)
        elif here != there:
            outer[here, one.rail, True].append(one)
            outer[there, one.rail, False].append(one)
    explained: set[Cell] = set()
    for (leaf, rail), of in inner.items():
        crossing = [*outer.get((leaf, rail, True), ()), *outer.get((leaf, rail, False), ())]
        is_crossing_bad = len(crossing) < LEAF_CELLS or _mostly_bad(crossing)
        if _mostly_bad(of) and _bad_nodes(of, sends=True) >= LEAF_NODES and is_crossing_bad:
            bad = [one for one in (*of, *crossing) if one.is_bad]
            yield _LeafFault("leaf", (leaf,), rail, "both", bad)
            explained.update(bad)
    uplinks = {
        key: of
        for key, of in outer.items()
        if key[0] != NO_LEAF
        and _mostly_bad(of, UPLINK_MOST)
        and _bad_nodes(of, sends=key[2]) >= LEAF_NODES
        and _bad_share(inner.get(key[:2], [])) < FEW
    }
    while uplinks:
        left = {key: [one for one in of if one not in explained] for key, of in uplinks.items()}
        best = max(left, key=lambda key: (_bad_share(left[key]), len(left[key]), key[0]))
        if not _mostly_bad(left[best], UPLINK_MOST):
            break
        bad = [one for one in left[best] if one.is_bad]
        # With two leaves, what leaves the one enters the other: it may be either.
        same = sorted(
            (leaf, sends)
            for (leaf, rail, sends), of in left.items()
            if rail == best[1] and {one for one in of if one.is_bad} == set(bad)
        )
        yield _LeafFault("uplink", tuple(leaf for leaf, _ in same), best[1], "out" if same[0][1] else "in", bad)
        explained.update(bad)
        del uplinks[best]


def _mostly_bad(cells: Sequence[Cell], share: float = MOST) -> bool:
    return len(cells) >= LEAF_CELLS and _bad_share(cells) >= share


def _bad_nodes(cells: Sequence[Cell], *, sends: bool) -> int:
    """How many nodes sent, or received, what is bad."""
    return len({one.source if sends else one.destination for one in cells if one.is_bad})


def _bad_share(cells: Sequence[Cell]) -> float:
    return sum(one.is_bad for one in cells) / len(cells) if cells else 0.0


# --- names ---


def _named(kind: Kind, fault: Fault, elements: tuple[str, ...], direction: Direction, cells: Sequence[Cell]) -> Named:
    ratios = [one.ratio for one in cells if one.ratio is not None]
    reasons = sorted({one.reason for one in cells if one.reason})
    ratio = median(ratios) if ratios else None
    rails = _sorted_rails({one.rail for one in cells})
    measurements = len({one.measured for one in cells})
    return Named(kind, fault, elements, rails, direction, ratio, measurements, ", ".join(reasons))


def _named_leaves(fault: Fault, found: Iterable[_LeafFault]) -> Iterator[Named]:
    """Leaf switches and uplinks, each with its rails; an uplink that is bad out and in is one."""
    of_rail: dict[tuple[Kind, tuple[str, ...], Rail], list[_LeafFault]] = defaultdict(list)
    for one in found:
        of_rail[one[:3]].append(one)
    of_part: dict[tuple[Kind, tuple[str, ...], Direction], list[Cell]] = defaultdict(list)
    for (kind, elements, _), ways in of_rail.items():
        of_part[kind, elements, "both" if len(ways) == 2 else ways[0].direction] += [
            cell for one in ways for cell in one.cells
        ]
    for (kind, elements, direction), cells in of_part.items():
        yield _named(kind, fault, elements, direction, cells)


def _named_nodes(
    fault: Fault, ends: Mapping[_End, Sequence[Cell]], names: Sequence[str], rails: Mapping[int, set[Rail]]
) -> Iterator[Named]:
    """NICs, or the node where most of its rails are at fault."""
    of_member: dict[int, list[_End]] = defaultdict(list)
    for end in sorted(ends, key=lambda end: (end.member, _rail_order(end.rail), end.sends)):
        of_member[end.member].append(end)
    for member, found in of_member.items():
        bad = {end.rail for end in found}
        is_node = bad == {None} or (len(rails[member]) > 1 and len(bad) >= NODE_SHARE * len(rails[member]))
        for group in [bad] if is_node else [{rail} for rail in bad]:
            of = [end for end in found if end.rail in group]
            cells = [cell for end in of for cell in ends[end]]
            yield _named("node" if is_node else "nic", fault, (names[member],), _direction(of), cells)


def _direction(ends: Sequence[_End]) -> Direction:
    """That of most ends; both where neither has most."""
    sending = sum(end.sends for end in ends)
    if 3 * sending > 2 * len(ends):
        return "out"
    return "in" if 3 * sending < len(ends) else "both"


def _opened(fault: Fault, cells: Iterable[Cell], names: Sequence[str]) -> Iterator[Named]:
    of_pair: dict[tuple[int, int], list[Cell]] = defaultdict(list)
    for one in cells:
        of_pair[min(one.source, one.destination), max(one.source, one.destination)].append(one)
    for (first, second), of in sorted(of_pair.items()):
        sources = {one.source for one in of}
        direction: Direction = "both" if len(sources) == 2 else "out" if first in sources else "in"
        yield _named("pair", fault, (names[first], names[second]), direction, of)


def _sorted_rails(rails: Iterable[Rail]) -> tuple[Rail, ...]:
    return tuple(sorted(rails, key=_rail_order))


def _rail_order(rail: Rail) -> int:
    return -1 if rail is None else rail


# --- the network as a whole ---


def _figures(run: Run, classes: Sequence[_Class]) -> Iterator[Figures]:
    values: dict[tuple[bool, str, str], list[float]] = defaultdict(list)
    latencies: dict[tuple[bool, str, str], list[float]] = defaultdict(list)
    for one, of_class in zip(run.measured, classes, strict=True):
        key = of_class[:3]
        values[key] += [value for value in (one.forward, one.backward, one.both) if value is not None]
        latencies[key] += [one.latency] if one.latency is not None else []
    for key, of in sorted(values.items()):
        if of:
            latency = median(latencies[key]) if latencies[key] else None
            yield Figures(
                "leaves" if key[0] else "leaf", key[1:], len(of), min(of), _usual(of) or median(of), max(of), latency
            )


def _whole(run: Run, classes: Sequence[_Class], *, is_fine: bool) -> Whole | None:
    """The rate from a node to another one: the usual of each rail, added up; None if nothing was measured."""
    values: dict[Rail, list[float]] = defaultdict(list)
    rates: dict[Rail, list[float]] = defaultdict(list)
    for one, of_class in zip(run.measured, classes, strict=True):
        values[one.rail] += [value for value in (one.forward, one.backward, one.both) if value is not None]
        rate = of_class[3]
        rates[one.rail] += [rate] if rate is not None else []
    carried = {rail: sorted(of) for rail, of in values.items() if of}
    if not carried:
        return None
    node = sum(_usual(of) or median(of) for of in carried.values())
    known = all(rates[rail] for rail in carried)
    return Whole(
        node=node,
        low=sum(of[len(of) // 10] for of in carried.values()),
        high=sum(of[-1 - len(of) // 10] for of in carried.values()),
        expected=sum(median(rates[rail]) for rail in carried) if known else None,
        inside=run.inside,
        is_bottleneck=is_fine and run.inside is not None and node < run.inside,
    )
