"""Faults laid on the answers of a recording.

Two nodes are simulated of the parts that the recording shows: one under the faults, one without any. Where both give
the same answer, the recorded one holds. Where they differ, the faulty one does; a recorded counter goes on, and counts
what the faulty one counts more.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from commwatch.errors import ConfigError
from commwatch.sources import files
from commwatch_rehearsal.simulation.ethtool import statistics_of
from commwatch_rehearsal.simulation.faults.fault import Fault
from commwatch_rehearsal.simulation.field_answers import Asked
from commwatch_rehearsal.simulation.fields import answer_of
from commwatch_rehearsal.simulation.hardware import Hardware
from commwatch_rehearsal.simulation.kernel_log import SimulatedKernelLog
from commwatch_rehearsal.simulation.kernel_log_texts import FIRST_BOOT, streams_of
from commwatch_rehearsal.simulation.node import SimulatedNode
from commwatch_rehearsal.simulation.presets.parts import Preset
from commwatch_rehearsal.simulation.rdma_counters import PORT_COUNTERS, QUEUE_COUNTERS, ROCE_COUNTERS
from commwatch_rehearsal.simulation.recording.answers import RecordedEthtool, RecordedKernelLog
from commwatch_rehearsal.simulation.recording.file import Recording
from commwatch_rehearsal.simulation.recording.lines import Call, Fields, File, LogLine, Root, Statistics
from commwatch_rehearsal.simulation.recording.parts import gpu_numbers
from commwatch_rehearsal.simulation.tree.procfs import procfs_tree
from commwatch_rehearsal.simulation.tree.sysfs import sysfs_tree
from commwatch_rehearsal.simulation.tree.writer import Entry, Tree

if TYPE_CHECKING:
    from commwatch_rehearsal.simulation.recording.node import RecordedNode, Track

Span = tuple[float, float]
"""Begin and end, seconds since the node started."""


def laid(
    recorded: Callable[[float], int],
    faulty: int,
    healthy: Callable[[float], int],
    age: float,
    reset: float = 0.0,
    stops: Sequence[Span] = (),
) -> int:
    """The count of a recorded counter under faults.

    Args:
        recorded: its recorded count at an age of the node.
        faulty: count now of the simulated node under faults, which knows of the reset and the stops.
        healthy: count at an age of the simulated node without faults.
        age: now.
        reset: when a fault last made it begin at 0 again; 0: never.
        stops: when a fault kept it from counting.
    """

    def kept(count: Callable[[float], int]) -> int:
        total = count(age) - (count(reset) if reset else 0)
        for span in stops:
            begin, end = max(span[0], reset), min(span[1], age)
            if begin < end:
                total -= max(0, count(end) - count(begin))
        return total

    return max(0, kept(recorded) + faulty - kept(healthy))


class FaultyParts(SimulatedNode):
    """The parts of a recorded node under the faults of a file, and without them.

    Raises:
        ConfigError: the recording does not show its parts, or cannot play a fault.
    """

    def __init__(
        self, path: Path, recording: Recording, faults_file: Path, started_at: float, clock: Callable[[], float]
    ) -> None:
        self._recording = recording
        super().__init__(str(path), faults_file, started_at, clock)
        self.healthy = Hardware(self.preset, ())
        self.numbers = gpu_numbers(recording)

    def files(self, node: RecordedNode, root: Root, contents: Mapping[Hashable, Track[File]]) -> FaultyFiles:
        """Those of ``/sys`` or ``/proc``; ``contents`` are the recorded ones, by path."""
        return FaultyFiles(node, self, root, contents)

    def _read_faults(self) -> tuple[Fault, ...]:
        faults = super()._read_faults()
        check_playable(faults, str(self._faults_file), self.preset, self._recording)
        return faults


_PORT_COUNTER = re.compile(r".*/infiniband/([^/]+)/ports/(\d+)/(?:counters|hw_counters)/(?!lifespan)([^/]+)")
_INTERFACE_COUNTER = re.compile(r".*/net/([^/]+)/(?:statistics/[^/]+|carrier_(?:changes|down_count))")
_ERROR_COUNTER = re.compile(r".*/aer_(?:dev|rootport)_\w+")
_COUNTERS: Final = {one.name: one for one in (*PORT_COUNTERS, *QUEUE_COUNTERS, *ROCE_COUNTERS)}


class FaultyFiles:
    """The recorded files of ``/sys`` or ``/proc`` under the faults."""

    def __init__(
        self, node: RecordedNode, parts: FaultyParts, root: Root, contents: Mapping[Hashable, Track[File]]
    ) -> None:
        self._node, self._parts, self._root = node, parts, root
        self._contents = contents

    def laid_on(
        self, folders: Mapping[str, Entry], files: Mapping[str, File]
    ) -> tuple[dict[str, Entry], dict[str, File]]:
        """Folders and files under the faults of now, by path, of those that were recorded."""
        self._hardware, self._age = self._parts.now()
        faulty, healthy = (
            _tree_of(self._root, hardware, self._age, self._parts.identity)
            for hardware in (self._hardware, self._parts.healthy)
        )
        places, answers = dict(folders), dict(files)
        for path in files:
            if (path in faulty and faulty[path] != healthy.get(path)) or any(self._past(path)):
                answers[path] = self._laid(path, files[path], faulty, healthy)
        usual = _commands(healthy)
        for path in faulty.keys() - healthy.keys() - files.keys():
            # A service that was started again has another process number: the recorded one comes back in its place.
            if faulty.get(f"{path.partition('/')[0]}/comm") not in usual:
                if isinstance(entry := faulty[path], str):
                    answers[path] = File(0.0, root=self._root, path=path, content=entry)
                else:
                    places[path] = entry
        gone = {path for path in healthy.keys() - faulty.keys() if not isinstance(healthy[path], str)}
        if self._root == "proc":
            # A service has another process number in the recording.
            stopped = usual - _commands(faulty)
            gone = {
                path.partition("/")[0] for path, one in files.items() if _is_command(path) and one.content in stopped
            }
        beneath = tuple(f"{path}/" for path in gone)
        for known in (places, answers):
            for path in [path for path in known if path in gone or path.startswith(beneath)]:
                del known[path]
        return places, answers

    def _past(self, path: str) -> tuple[float, list[Span]]:
        """When faults last made a counter begin at 0, or 0, and when they stopped it; neither for other files."""
        hardware, age = self._hardware, self._age
        if found := _PORT_COUNTER.fullmatch(path):
            for port in hardware.epoch(age).rdma_ports:
                if (port.port.device, str(port.port.port)) == found.group(1, 2):
                    return port.last_reset, _spans(port.downs, age)
        if found := _INTERFACE_COUNTER.fullmatch(path):
            return hardware.last_boot(age), _spans(hardware.downs(found[1]), age)
        return (hardware.last_boot(age) if _ERROR_COUNTER.fullmatch(path) else 0.0), []

    def _laid(self, path: str, one: File, faulty_tree: Tree, healthy_tree: Tree) -> File:
        """A recorded file under the faults."""
        faulty, healthy = (str(tree.get(path) or "") for tree in (faulty_tree, healthy_tree))
        if one.error:
            return one  # a file that could not be read has nothing to be changed
        if faulty_tree.get(path, "") is None:
            return msgspec.structs.replace(one, content="", error="EIO")
        counter = any(form.fullmatch(path) for form in (_PORT_COUNTER, _INTERFACE_COUNTER, _ERROR_COUNTER))
        if not counter:
            return msgspec.structs.replace(one, content=faulty)
        reset, stops = self._past(path)
        track = self._contents[path]
        counts, more, less = (_counts(text) for text in (one.content, faulty, healthy))
        lines = []
        for name in counts:
            count = laid(
                lambda age, name=name: _counts(track.at(self._node.moment_at(age)).content).get(name, 0),  # type: ignore[misc]  # bound now
                more.get(name, 0),
                lambda _age, name=name: less.get(name, 0),  # type: ignore[misc]  # bound now
                self._age,
                reset,
                stops,
            )
            lines.append(f"{name} {self._bounded(path, count, more.get(name, 0))}".lstrip())
        return msgspec.structs.replace(one, content="".join(f"{line}\n" for line in lines))

    @staticmethod
    def _bounded(path: str, count: int, faulty: int) -> int:
        """A count within the width of its counter."""
        counter = _COUNTERS.get(path.rpartition("/")[2]) if "/infiniband/" in path else None
        if counter is None:
            return count
        if faulty == counter.maximum:
            return faulty
        return count % (counter.maximum + 1) if counter.wraps else min(count, counter.maximum)


def _tree_of(root: Root, hardware: Hardware, age: float, identity: str = "") -> Tree:
    return sysfs_tree(hardware, age) if root == "sys" else procfs_tree(hardware, age, identity)


def _is_command(path: str) -> bool:
    return path.endswith("/comm")


def _commands(tree: Tree) -> set[Entry]:
    """The names of the processes."""
    return {content for path, content in tree.items() if _is_command(path)}


def _counts(text: str) -> dict[str, int]:
    """The numbers of a file of counters by their names; a lone number has none."""
    found = {}
    for line in text.splitlines():
        name, _, number = line.strip().rpartition(" ")
        if (count := files.parse_integer(number.encode("latin-1"))) is not None:
            found[name] = count
    return found


def _spans(faults: Iterable[Fault], age: float) -> list[Span]:
    return [(fault.start, fault.end) for fault in faults if fault.start <= age]


class FaultyEthtool(RecordedEthtool):
    """The recorded statistics of interfaces under the faults."""

    def __init__(self, node: RecordedNode, parts: FaultyParts) -> None:
        super().__init__(node)
        self._parts = parts
        self._interfaces = {one.name: one for one in parts.preset.interfaces}

    def values(self, interface: str, count: int) -> list[int]:
        """See ``RecordedEthtool.values``."""
        recorded = super().values(interface, count)
        one, names = self._interfaces.get(interface), self.known_names(interface)
        hardware, age = self._parts.now()
        if one is None or len(names) < count or not hardware.faults:
            return recorded
        faulty = statistics_of(hardware, one, age)
        healthy = cache(partial(statistics_of, self._parts.healthy, one))
        reset, stops = hardware.last_boot(age), _spans(hardware.downs(interface), age)
        return [
            laid(
                lambda at, place=place: self.value(interface, place, self._node.moment_at(at)),  # type: ignore[misc]  # bound now
                faulty[name],
                lambda at, name=name: healthy(at)[name],  # type: ignore[misc]  # bound now
                age,
                reset,
                stops,
            )
            if name in faulty
            else value
            for place, (name, value) in enumerate(zip(names, recorded, strict=False))
        ]


class FaultyKernelLog:
    """The recorded kernel log with the lines of the faults in their time, newly opened.

    Records are numbered by the microsecond in which they came, so that a log that is opened again gives each the same
    number.

    Raises:
        OSError: it could not be opened.
    """

    def __init__(self, node: RecordedNode, parts: FaultyParts, monotonic: Callable[[], float] = time.monotonic) -> None:
        hardware, age = parts.now()
        self._boot = hardware.last_boot(age)
        self._recorded = RecordedKernelLog(node, monotonic)
        self._injected = SimulatedKernelLog(parts, monotonic, with_first_boot=False)
        self._heads: list[tuple[int, bytes] | None] = [None, None]
        """The next record of each, with the microsecond in which it came."""
        self._last_number = -1

    def read(self) -> bytes | None:
        """The next record; None: none now.

        Raises:
            OSError: it cannot be read.
        """
        recorded, injected = self._heads
        self._heads = [recorded or self._next_recorded(), injected or self._next_injected()]
        came, record = min((one for one in self._heads if one is not None), default=(0, b""))
        if not record:
            return None
        self._heads[self._heads.index((came, record))] = None
        level, _, rest = record.split(b",", 2)
        self._last_number = max(self._last_number + 1, came)
        return b"%s,%d,%s" % (level, self._last_number, rest)

    def close(self) -> None:
        """Nothing is held."""

    def _next_recorded(self) -> tuple[int, bytes] | None:
        """A node that has booted since has a new log."""
        while (record := self._recorded.read()) is not None:
            if self._recorded.came >= self._boot * 1e6:
                return self._recorded.came, record
        return None

    def _next_injected(self) -> tuple[int, bytes] | None:
        record = self._injected.read()
        return None if record is None else (int(record.split(b",", 2)[1]), record)


_CHECKED: Final = frozenset(
    {
        "nvlink_down", "nvlink_crc", "nvlink_recovery", "nvlink_replay", "nvlink_recovery_failed", "nvlink_bit_errors",
        "nvlink_packet_errors", "p2p_broken", "fabric_unhealthy", "gpu_throttled", "recovery_needed", "xid", "sxid",
        "adapter_event", "service_stopped",
    }
)  # fmt: skip
_CHECKED_FAMILIES: Final = ("pcie_", "ethernet_", "rdma_")
"""Kinds, besides those above, that change answers which a recording may lack. What the others change, such as the calls
of a GPU, every recording with GPUs has."""
_FUNCTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "fabric_unhealthy": ("nvmlDeviceGetGpuFabricInfoV",),
    "p2p_broken": ("nvmlDeviceGetP2PStatus",),
    "gpu_throttled": ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
    "pcie_width": ("nvmlDeviceGetCurrPcieLinkWidth",),
    "pcie_generation": ("nvmlDeviceGetCurrPcieLinkGeneration",),
}
"""Functions of the driver that show a fault."""
_AT_ONCE: Final = frozenset({"rdma_counter_reset"})
"""Kinds whose effect needs a count before it: that there is such a port is enough."""


def check_playable(faults: Iterable[Fault], file: str, preset: Preset, recording: Recording) -> None:
    """Refuse a fault that changes no answer which was recorded, and recorded without an error.

    Raises:
        ConfigError: there is one; it names the file.
    """
    checks = (_changes_functions, _changes_log, _changes_files, _changes_fields, _changes_statistics)
    healthy = Hardware(preset, ())
    for fault in faults:
        if fault.kind not in _AT_ONCE and (fault.kind in _CHECKED or fault.kind.startswith(_CHECKED_FAMILIES)):
            faulty = Hardware(preset, (fault,))
            if not any(check(recording, faulty, healthy, fault) for check in checks):
                problem = f"{fault.kind}: the recording has none of the answers that it changes, or only their errors"
                raise ConfigError(file, None, "", problem)


def _changes_functions(recording: Recording, _faulty: Hardware, _healthy: Hardware, fault: Fault) -> bool:
    names = _FUNCTIONS.get(fault.kind, ())
    struck = {number for place, number in enumerate(gpu_numbers(recording)) if fault.strikes(place)}
    return any(
        isinstance(one, Call) and one.function in names and one.code == 0 and not struck.isdisjoint(one.arguments[:2])
        for one in recording.answers
    )


def _changes_log(recording: Recording, faulty: Hardware, _healthy: Hardware, _fault: Fault) -> bool:
    unreadable = any(isinstance(one, LogLine) and one.error not in ("", "EPIPE") for one in recording.answers)
    return not unreadable and any(key != FIRST_BOOT for key, _ in streams_of(faulty))


def _changes_files(recording: Recording, faulty: Hardware, healthy: Hardware, fault: Fault) -> bool:
    for root in ("sys", "proc"):
        read = {one.path: one.content for one in recording.answers
                if isinstance(one, File) and one.root == root and not one.error}  # fmt: skip
        changed, usual = (_tree_of(root, hardware, fault.start) for hardware in (faulty, healthy))
        if any(path in read and content != usual.get(path) for path, content in changed.items()):
            return True
        if not (_commands(usual) - _commands(changed)).isdisjoint(read.values()):
            return True
    return False


def _changes_fields(recording: Recording, faulty: Hardware, healthy: Hardware, fault: Fault) -> bool:
    places = {number: place for place, number in enumerate(gpu_numbers(recording))}
    asked = {
        (one.gpu, field, scope)
        for one in recording.answers
        if isinstance(one, Fields)
        for field, scope, _, code, _ in one.entries
        if code == 0
    }
    for number, field, scope in asked:
        if (place := places.get(number)) is not None:
            one, other = (
                answer_of(Asked(hardware, hardware.epoch(fault.start), place, scope), field)
                for hardware in (faulty, healthy)
            )
            if one.code != other.code or (one.code == 0 and one.at(fault.start) != other.at(fault.start)):
                return True
    return False


def _changes_statistics(recording: Recording, faulty: Hardware, healthy: Hardware, fault: Fault) -> bool:
    names = {(one.interface, name) for one in recording.answers if isinstance(one, Statistics) for name in one.names}
    for interface in faulty.preset.interfaces:
        one, other = (statistics_of(hardware, interface, fault.start) for hardware in (faulty, healthy))
        if any((interface.name, name) in names and count != other[name] for name, count in one.items()):
            return True
    return False
