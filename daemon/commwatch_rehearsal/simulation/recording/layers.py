"""The layers beneath the readers that write down what the driver and the kernel answer, and change none of it."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final, Literal, TypeVar

import pynvml

from commwatch.sources import files
from commwatch.sources.ethtool.abi import NAME_BYTES, Statistics
from commwatch.sources.kernel_log import LogDevice
from commwatch.sources.kernel_log_lines import parse_record, parse_report
from commwatch_rehearsal.simulation.abi import pointer_address
from commwatch_rehearsal.simulation.recording import lines
from commwatch_rehearsal.simulation.recording.calls import (
    ERROR_TEXT,
    FIELD_VALUES,
    FIELD_WORDS,
    GPM_METRICS,
    GPM_SAMPLE,
    INITIALISE,
    OPENS_HANDLE,
    WAIT,
    memory_of,
    question,
)
from commwatch_rehearsal.simulation.recording.file import RecordingFile
from commwatch_rehearsal.simulation.recording.lines import (
    Argument,
    Call,
    Cost,
    Event,
    Field,
    Fields,
    File,
    Folder,
    LogLine,
    Metrics,
    Root,
)
from commwatch_rehearsal.simulation.recording.names import Names

_T = TypeVar("_T")

_ALWAYS_LISTED: Final = ("module", "class/net", "class/infiniband", "bus/pci/devices")
"""Folders of sysfs in which readers look for names without listing them, or that tell by being empty."""
_IDENTITIES: Final = ("clusterUuid", "ibGuid", "rackGuid", "chassisSerialNumber", "serial", "uuid")
"""Fields of structures of the driver that are an identity."""


def error_name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, "EIO")


class Tape:
    """Takes the answers from the layers: one that repeats the last one of its question is only counted.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, file: RecordingFile, names: Names, clock: Callable[[], float] = time.monotonic) -> None:
        self.file = file
        self.names = names
        self.clock = clock
        self.began = clock()
        self._last: dict[object, object] = {}
        self._costs: dict[str, tuple[int, float, float]] = {}

    @property
    def at(self) -> float:
        """Seconds since the recording began, to the microsecond."""
        return round(max(0.0, self.clock() - self.began), 6)

    def is_new(self, key: object, answer: object) -> bool:
        """Whether a question had another answer before, or none."""
        if key in self._last and self._last[key] == answer:
            return False
        self._last[key] = answer
        return True

    def spent(self, what: str, since: float) -> float:
        """Count a call that began at a time of ``time.perf_counter``; returns its seconds."""
        took = round(time.perf_counter() - since, 7)
        calls, total, longest = self._costs.get(what, (0, 0.0, 0.0))
        self._costs[what] = calls + 1, total + took, max(longest, took)
        return took

    def costs(self) -> list[Cost]:
        """Number and duration of the calls, by total duration, longest first."""
        ranked = sorted(self._costs.items(), key=lambda one: -one[1][1])
        return [Cost(what, calls, round(total, 6), longest) for what, (calls, total, longest) in ranked]


class RecordingLibrary:
    """The driver's library, with what it answers written down; ``pynvml`` finds it in place of the real one."""

    def __init__(self, library: Any, tape: Tape) -> None:
        self._library = library
        self._tape = tape
        self._handles: dict[int, int] = {}
        self._samples: dict[int, int] = {}
        """By address the number of the GPU that a sample is of."""
        self._fields: dict[tuple[int, int, int], Field] = {}

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, name)
        # A partial object: unlike a method it takes the attributes (restype) that the binding sets on C functions.
        wrapped = function if name == ERROR_TEXT else partial(self._call, name, function)
        setattr(self, name, wrapped)
        return wrapped

    def _call(self, name: str, function: Any, *arguments: Any) -> int:
        tape = self._tape
        asked = () if name in (FIELD_VALUES, GPM_METRICS, WAIT) else self._question(name, arguments)
        before = [bytes(memory) if memory is not None else b"" for memory in map(memory_of, arguments)] if asked else []
        at, since = tape.at, time.perf_counter()
        code = int(function(*arguments))
        took = tape.spent(name, since)
        if name == FIELD_VALUES:
            self._take_fields(at, took, arguments, code)
        elif name == GPM_METRICS:
            self._take_metrics(at, took, arguments, code)
        elif name == WAIT:
            self._take_event(at, took, arguments, code)
        else:
            if name == GPM_SAMPLE:
                self._samples[pointer_address(arguments[1])] = self._number(pointer_address(arguments[0]))
            memory = tuple(
                self._memory(name, argument, old) for argument, old in zip(arguments, before, strict=True)
            ) if asked else ()  # fmt: skip
            if not any(one is not None for one in memory):
                memory = ()
            if tape.is_new((name, asked), (code, memory)):
                tape.file.write(Call(at, took, function=name, arguments=asked, code=code, memory=memory))
        return code

    def _question(self, name: str, arguments: tuple[Any, ...]) -> tuple[Argument, ...]:
        return question(name, arguments, self._number, self._tape.names.text)

    def _number(self, address: int) -> int:
        return self._handles.get(address, 0)

    def _memory(self, name: str, argument: Any, before: bytes) -> str | None:
        memory = memory_of(argument)
        if memory is None or (after := bytes(memory)) == before:
            return None
        if isinstance(memory, ctypes._Pointer):
            if not name.startswith(OPENS_HANDLE):
                return None
            return str(self._handles.setdefault(pointer_address(memory), len(self._handles) + 1))
        return self._named(name, memory, after).rstrip(b"\0").hex()

    def _named(self, name: str, memory: Any, content: bytes) -> bytes:
        """The content of memory with its names replaced."""
        names = self._tape.names
        if names.keep:
            return content
        if isinstance(memory, ctypes.Array) and memory._type_ is ctypes.c_char:
            text = content.partition(b"\0")[0].decode("latin-1")
            new = names.identity(text) if name.endswith("Serial") else names.text(text)
            return new.encode("latin-1")
        if isinstance(memory, ctypes.Structure):
            copy = type(memory).from_buffer_copy(content)
            for field in _IDENTITIES:
                descriptor = getattr(type(memory), field, None)
                if descriptor is not None:
                    place = slice(descriptor.offset, descriptor.offset + descriptor.size)
                    content = content[: place.start] + names.raw(bytes(copy)[place]) + content[place.stop :]
        return content

    def _take_fields(self, at: float, took: float, arguments: tuple[Any, ...], code: int) -> None:
        gpu, tape = self._number(pointer_address(arguments[0])), self._tape
        is_new = tape.is_new((FIELD_VALUES, gpu), code)
        entries: list[Field] = []
        if code == 0:
            words = memoryview(bytes(memory_of(arguments[2]))).cast("Q").tolist()
            for place in range(0, len(words), FIELD_WORDS):
                ids, _, _, kind, value = words[place : place + FIELD_WORDS]
                # Little-endian, as on every platform of the driver.
                entry = (ids & 0xFFFFFFFF, ids >> 32, kind & 0xFFFFFFFF, kind >> 32, value)
                key = (gpu, entry[0], entry[1])
                if self._fields.get(key) != entry:
                    self._fields[key] = entry
                    entries.append(entry)
        if is_new or entries:
            tape.file.write(Fields(at, took, gpu=gpu, code=code, entries=tuple(entries)))

    def _take_metrics(self, at: float, took: float, arguments: tuple[Any, ...], code: int) -> None:
        asked = memory_of(arguments[0])
        gpu = self._samples.get(pointer_address(asked.sample2), 0)
        metrics = tuple(
            (one.metricId, one.nvmlReturn, None if one.value != one.value else one.value)
            for one in asked.metrics[: asked.numMetrics]
        ) if code == 0 else ()  # fmt: skip
        if self._tape.is_new((GPM_METRICS, gpu), (code, metrics)):
            self._tape.file.write(Metrics(at, took, gpu=gpu, code=code, metrics=metrics))

    def _take_event(self, at: float, took: float, arguments: tuple[Any, ...], code: int) -> None:
        tape = self._tape
        if code == 0:
            data = memory_of(arguments[1])
            instances = (data.gpuInstanceId, data.computeInstanceId)
            tape.file.write(Event(at, took, gpu=self._number(pointer_address(data.device)), kind=data.eventType,
                                  data=data.eventData, instances=instances))  # fmt: skip
        elif tape.is_new(WAIT, code):
            tape.file.write(Call(at, took, function=WAIT, arguments=(), code=code))


def record_driver(tape: Tape) -> Callable[[], None]:
    """Put the layer beneath ``pynvml``, if there is a library at all; returns what removes it."""
    if pynvml.nvmlLib is None:
        try:
            pynvml._LoadNvmlLibrary()
        except pynvml.NVMLError as error:  # the reader finds that too, and says so
            tape.file.write(Call(0.0, function=INITIALISE, arguments=(0,), code=error.value))
            return lambda: None
    library = pynvml.nvmlLib
    pynvml.nvmlLib = RecordingLibrary(library, tape)
    pynvml._nvmlGetFunctionPointer_cache.clear()

    def remove() -> None:
        pynvml.nvmlLib = library
        pynvml._nvmlGetFunctionPointer_cache.clear()

    return remove


_in_place: list[FileLayer] = []
"""The layers that are not removed yet."""


def _audited(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "os.listdir" and isinstance(arguments[0], str):
        for layer in tuple(_in_place):
            layer.note_listing(arguments[0])


@cache
def _add_audit_hook() -> None:
    """Add the one audit hook of all layers: it stays for the life of the process, and each costs at every file."""
    sys.addaudithook(_audited)


class FileLayer:
    """Writes down the files of sysfs and procfs that are read, and the folders and links on the way to them."""

    def __init__(self, tape: Tape, sysfs: str, procfs: str) -> None:
        self._tape = tape
        self._roots: dict[Root, tuple[str, str]] = {
            "sys": (sysfs, os.path.realpath(sysfs)), "proc": (procfs, os.path.realpath(procfs)),
        }  # fmt: skip
        self._places: dict[str, tuple[Root, str] | None] = {}
        """By folder as a reader names it: its root, and its place below without any link."""
        self._folders: set[tuple[Root, str]] = {("proc", ""), *(("sys", name) for name in _ALWAYS_LISTED)}
        self._listed: set[tuple[Root, str]] = set()
        self._lock = threading.Lock()
        self._remove = files.put_beneath(self._layer)
        _in_place.append(self)
        _add_audit_hook()

    def remove(self) -> None:
        """Take the layer away."""
        _in_place.remove(self)
        self._remove()

    def _layer(self, below: files.Reading) -> files.Reading:
        tape = self._tape

        def read(path: str, most_bytes: int) -> bytes:
            at, since = tape.at, time.perf_counter()
            content, error = b"", ""
            try:
                content = below(path, most_bytes)
                return content
            except OSError as caught:
                error = error_name(caught)
                raise
            finally:
                took = tape.spent("files", since)
                if (place := self._place(path)) is not None and tape.is_new(place, (content, error)):
                    root, name = place
                    if name == "cpuinfo":  # of which the flags of one processor are used
                        content = next((one for one in content.splitlines() if one.startswith(b"flags")), b"") + b"\n"
                    text = tape.names.file(root, name, content.decode("latin-1"))
                    tape.file.write(File(at, took, root=root, path=name, content=text, error=error))

        return read

    def _place(self, path: str) -> tuple[Root, str] | None:
        folder, _, name = str(path).rpartition("/")
        found = self._place_of_folder(folder)
        return None if found is None else (found[0], f"{found[1]}/{name}" if found[1] else name)

    def _place_of_folder(self, folder: str) -> tuple[Root, str] | None:
        places = self._places  # another thread may put an empty one in its place
        if folder not in places:
            places[folder] = self._found(folder)
        return places[folder]

    def _found(self, folder: str) -> tuple[Root, str] | None:
        for root, (shown, real) in self._roots.items():
            if folder != shown and not folder.startswith(f"{shown}/") and not folder.startswith(f"{real}/"):
                continue
            below = folder[len(shown) if folder.startswith(shown) else len(real) :].strip("/")
            if root == "proc" and below.partition("/")[0] in ("self", "thread-self"):
                return None  # of this program, not of the node
            place = os.path.realpath(folder)
            if place != real and not place.startswith(f"{real}/"):
                return None
            relative = place[len(real) :].strip("/")
            with self._lock:
                for one in {below, relative}:
                    parts = one.split("/")
                    self._folders.update((root, "/".join(parts[:count])) for count in range(1, len(parts) + 1))
                self._folders.add((root, ""))
            return root, relative
        return None

    def note_listing(self, folder: str) -> None:
        """Note that the entries of a folder were asked for."""
        if (place := self._place_of_folder(folder)) is not None:
            self._listed.add(place)

    def look(self, at: float) -> None:
        """Write down the folders that have changed; those of processes are but names."""
        with self._lock:
            folders = list(self._folders)
        seen: set[tuple[Root, str]] = set()
        for root, path in folders:
            real = self._roots[root][1]
            place = os.path.realpath(f"{real}/{path}" if path else real)
            if place != real and not place.startswith(f"{real}/"):
                continue
            below = place[len(real) :].strip("/")
            if (root, below) in seen or (root == "proc" and below[:1].isdecimal()):
                continue
            seen.add((root, below))
            entries, names = self._entries(root, place, real)
            if (root, below) not in self._listed:
                names = ()
            if self._tape.is_new(("folder", root, below), (entries, names)):
                self._tape.file.write(Folder(at, root=root, path=below, entries=entries, files=names))
                self._places = {}  # what was unplugged and plugged in again may be elsewhere

    @staticmethod
    def _entries(root: Root, place: str, real: str) -> tuple[dict[str, str] | None, tuple[str, ...]]:
        entries: dict[str, str] = {}
        names: list[str] = []
        try:
            with os.scandir(place) as found:
                for one in found:
                    if one.is_symlink():
                        to = os.path.realpath(one.path)
                        if root == "sys" and to.startswith(f"{real}/") and os.path.isdir(to):
                            entries[one.name] = to[len(real) + 1 :]
                    elif one.is_dir(follow_symlinks=False) and (root == "sys" or one.name.isdecimal()):
                        entries[one.name] = ""
                    elif root == "sys" and one.is_file(follow_symlinks=False):
                        names.append(one.name)
        except OSError:
            return None, ()
        return dict(sorted(entries.items())), tuple(sorted(names))


class RecordingLog:
    """A kernel log, with those records written down that a reader uses."""

    def __init__(self, open_log: Callable[[], LogDevice], tape: Tape) -> None:
        self._tape = tape
        try:
            self._log = open_log()
        except OSError as error:
            if tape.is_new("log", error_name(error)):
                tape.file.write(LogLine(tape.at, error=error_name(error)))
            raise

    def read(self) -> bytes | None:
        tape = self._tape
        at, since = tape.at, time.perf_counter()
        try:
            record = self._log.read()
        except OSError as error:
            tape.file.write(LogLine(at, tape.spent("kernel log", since), error=error_name(error)))
            raise
        took = tape.spent("kernel log", since)
        parsed = None if record is None else parse_record(record)
        if record is None or parsed is None or not parsed.from_kernel or parse_report(parsed.text) is None:
            return record
        head, _, rest = record.decode("latin-1").partition(";")
        if tape.is_new(("log", parsed.sequence), rest):
            stamp = round(parsed.microseconds / 1e6 - tape.began, 6)
            level = int(head.partition(",")[0])
            text = tape.names.text(rest.partition("\n")[0])
            tape.file.write(LogLine(at, took, level=level, number=parsed.sequence, stamp=stamp, text=text))
        return record

    def close(self) -> None:
        self._log.close()


class RecordingEthtool:
    """The statistics of interfaces, with what the kernel gave written down."""

    def __init__(self, below: Statistics, tape: Tape) -> None:
        self._below, self._tape = below, tape
        self._numbers: dict[str, dict[int, int]] = {}

    def count(self, interface: str) -> int:
        count, at, took = self._call("count", interface, self._below.count, interface)
        if self._tape.is_new((interface, "count"), count):
            self._tape.file.write(lines.Statistics(at, took, interface=interface, command="count", count=count))
        return count

    def names(self, interface: str, count: int) -> bytes | None:
        raw, at, took = self._call("names", interface, self._below.names, interface, count)
        if raw is not None and self._tape.is_new((interface, "names"), raw):
            pieces = (raw[place : place + NAME_BYTES] for place in range(0, len(raw), NAME_BYTES))
            names = tuple(one.rstrip(b"\0").decode("latin-1") for one in pieces)
            self._tape.file.write(
                lines.Statistics(at, took, interface=interface, command="names", count=count, names=names)
            )
        return raw

    def numbers(self, interface: str, count: int) -> memoryview | None:
        memory, at, took = self._call("numbers", interface, self._below.numbers, interface, count)
        if memory is not None:
            numbers = dict(enumerate(memory[:count].tolist()))
            last = self._numbers.get(interface, {})
            changed = tuple((place, value) for place, value in numbers.items() if last.get(place) != value)
            self._numbers[interface] = numbers
            if self._tape.is_new((interface, "numbers"), count) or changed:
                self._tape.file.write(
                    lines.Statistics(at, took, interface=interface, command="numbers", count=count, numbers=changed)
                )
        return memory

    def close(self) -> None:
        self._below.close()

    def _call(
        self,
        command: Literal["count", "names", "numbers"],
        interface: str,
        function: Callable[..., _T],
        *arguments: Any,
    ) -> tuple[_T, float, float]:
        """The answer, when it was asked for, and the seconds that it took; an error is written down."""
        tape = self._tape
        at, since = tape.at, time.perf_counter()
        try:
            answer = function(*arguments)
        except OSError as error:
            took = tape.spent("ethtool", since)
            if tape.is_new((interface, command), error_name(error)):
                tape.file.write(
                    lines.Statistics(at, took, interface=interface, command=command, error=error_name(error))
                )
            raise
        return answer, at, tape.spent("ethtool", since)
