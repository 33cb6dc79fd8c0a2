"""Driver library, ethtool and kernel log of a recorded node, in place of those of this machine."""

from __future__ import annotations

import ctypes
import errno
import os
import time
from array import array
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any, Final

import pynvml

from commwatch.sources.ethtool.abi import MOST_STATISTICS, NAME_BYTES
from commwatch_rehearsal.simulation.abi import (
    DRIVER_NOT_LOADED,
    INVALID_ARGUMENT,
    MESSAGES,
    NOT_SUPPORTED,
    SUCCESS,
    TIMEOUT,
    UNKNOWN,
    Argument,
    integer,
    point,
    pointer_address,
)
from commwatch_rehearsal.simulation.recording import lines
from commwatch_rehearsal.simulation.recording.calls import (
    ERROR_TEXT,
    FIELD_VALUES,
    FIELD_WORDS,
    GPM_METRICS,
    GPM_SAMPLE,
    INITIALISE,
    LISTS,
    MAKES,
    WAIT,
    memory_of,
    question,
)
from commwatch_rehearsal.simulation.recording.node import RecordedNode, Track, tracks

_OVERWRITTEN: Final = "EPIPE"
_NOT_A_HANDLE: Final = 2**32
"""Addresses from here on are of what the library lends; those below are numbers of GPUs."""
_Answer = tuple[int, tuple[str | None, ...]]


class RecordedLibrary:
    """The driver's library of a recorded node; a function that was not called when it was recorded is missing."""

    def __init__(self, node: RecordedNode) -> None:
        self._node = node
        self.calls: Mapping[object, Track[_Answer]] = tracks()
        self.fields: Mapping[object, Track[tuple[int, int, int]]] = tracks()
        """By GPU, field and scope: type, return code, bits."""
        self._field_codes: Mapping[object, Track[int]] = tracks()
        self._metrics: Mapping[object, Track[lines.Metrics]] = tracks()
        self._events: list[lines.Event] = []
        self._event = 0
        self._made = count(_NOT_A_HANDLE)
        self._samples: dict[int, int] = {}
        functions = {ERROR_TEXT, INITIALISE}
        for one in node.recording.answers:
            if isinstance(one, lines.Call):
                functions.add(one.function)
                self.calls[one.function, one.arguments].add(one.at, (one.code, one.memory))
            elif isinstance(one, lines.Fields):
                functions.add(FIELD_VALUES)
                self._field_codes[one.gpu].add(one.at, one.code)
                for field, scope, kind, code, value in one.entries:
                    self.fields[one.gpu, field, scope].add(one.at, (kind, code, value))
            elif isinstance(one, lines.Metrics):
                functions.add(GPM_METRICS)
                self._metrics[one.gpu].add(one.at, one)
            elif isinstance(one, lines.Event):
                functions.add(WAIT)
                self._events.append(one)
        self.functions = functions
        while self._event < len(self._events) and self._events[self._event].at < node.age:
            self._event += 1  # they came before this process began

    def __getattr__(self, name: str) -> Any:
        if name not in self.functions:
            raise AttributeError(name)
        special: dict[str, Callable[..., Any]] = {
            ERROR_TEXT: lambda code: MESSAGES.get(integer(code), b"Unknown Error"),
            FIELD_VALUES: self._field_values, GPM_METRICS: self._gpm_metrics, WAIT: self._wait,
        }  # fmt: skip
        # A partial object: unlike a method it takes the attributes (restype) that the binding sets on C functions.
        function = partial(special.get(name) or partial(self._call, name))
        setattr(self, name, function)
        return function

    def track(self, name: str, arguments: tuple[Argument, ...]) -> Track[_Answer] | None:
        """The answers to a call; None where it was not made. A list that was empty is so whatever room there is."""
        asked = question(name, arguments, _number, lambda text: text)
        found = self.calls.get((name, asked))
        return self.calls.get((name, (*asked[:-1], None))) if found is None and LISTS in name else found

    def _call(self, name: str, *arguments: Argument) -> int:
        track = self.track(name, arguments)
        if track is None:
            # Where the driver was not even opened, none was loaded.
            return DRIVER_NOT_LOADED if name == INITIALISE else NOT_SUPPORTED
        code, contents = track.at(self._node.moment)
        if name == GPM_SAMPLE and code == SUCCESS:
            self._samples[pointer_address(arguments[1])] = pointer_address(arguments[0])
        if name in MAKES and code == SUCCESS:
            point(memory_of(arguments[0]), next(self._made))
        for argument, content in zip(arguments, contents, strict=False):
            memory = memory_of(argument)
            if content is None or memory is None:
                continue
            if isinstance(memory, ctypes._Pointer):
                point(memory, int(content) if content.isdecimal() and len(content) < 10 else 0)
                continue
            try:
                data = bytes.fromhex(content)
            except ValueError:
                return UNKNOWN
            size = ctypes.sizeof(memory)
            if len(data) > size:
                return UNKNOWN  # it never writes past the caller's memory
            ctypes.memmove(ctypes.addressof(memory), data.ljust(size, b"\0"), size)
        return code

    def _field_values(self, handle: Argument, number: Argument, values: Argument) -> int:
        gpu, moment = pointer_address(handle), self._node.moment
        codes = self._field_codes.get(gpu)
        if codes is None:
            return INVALID_ARGUMENT
        if (code := codes.at(moment)) != SUCCESS:
            return code
        memory = memory_of(values)
        words = memoryview(memory).cast("B").cast("Q")
        now = int((self._node.started_at + self._node.age) * 1e6)
        for place in range(0, min(integer(number) * FIELD_WORDS, len(words)), FIELD_WORDS):
            ids = words[place]
            track = self.fields.get((gpu, ids & 0xFFFFFFFF, ids >> 32))
            kind, code, value = (0, NOT_SUPPORTED, 0) if track is None else track.at(moment)
            words[place + 1], words[place + 2] = now, 0
            words[place + 3], words[place + 4] = kind | code << 32, value
        return SUCCESS

    def _gpm_metrics(self, argument: Argument) -> int:
        asked = memory_of(argument)
        track = self._metrics.get(self._samples.get(pointer_address(asked.sample2), 0))
        if track is None:
            return INVALID_ARGUMENT
        answer = track.at(self._node.moment)
        known = {number: (code, value) for number, code, value in answer.metrics}
        for one in asked.metrics[: min(asked.numMetrics, len(asked.metrics))]:
            one.nvmlReturn, value = known.get(one.metricId, (NOT_SUPPORTED, None))
            one.value = float("nan") if value is None else value
        return answer.code

    def _wait(self, _event_set: Argument, data: Argument, _milliseconds: Argument) -> int:
        if self._event < len(self._events) and self._events[self._event].at <= self._node.age:
            event = self._events[self._event]
            self._event += 1
            filled = memory_of(data)
            point(filled, event.gpu)
            filled.eventType, filled.eventData = event.kind, event.data
            filled.gpuInstanceId, filled.computeInstanceId = event.instances
            return SUCCESS
        track = self.calls.get((WAIT, ()))
        return TIMEOUT if track is None else track.at(self._node.moment)[0]


def _number(address: int) -> int:
    return address if address < _NOT_A_HANDLE else 0


def install(node: RecordedNode) -> None:
    """Put the library of a recorded node beneath ``pynvml`` in this process."""
    if node.faults is None:
        pynvml.nvmlLib = RecordedLibrary(node)
    else:
        from commwatch_rehearsal.simulation.recording.faulty_library import FaultyLibrary

        pynvml.nvmlLib = FaultyLibrary(node, node.faults)
    pynvml._nvmlGetFunctionPointer_cache.clear()


class RecordedEthtool:
    """Stands in for ``StatisticsCalls``; methods raise OSError as it was recorded."""

    def __init__(self, node: RecordedNode) -> None:
        self._node = node
        self._answers: Mapping[object, Track[lines.Statistics]] = tracks()
        self._numbers: Mapping[object, Track[int]] = tracks()
        for one in node.recording.answers:
            if isinstance(one, lines.Statistics):
                self._answers[one.interface, one.command].add(one.at, one)
                for place, value in one.numbers:
                    self._numbers[one.interface, place].add(one.at, value)

    def count(self, interface: str) -> int:
        """How many statistics the driver had."""
        count = self._answer(interface, "count").count
        return count if count <= MOST_STATISTICS else 0

    def names(self, interface: str, count: int) -> bytes | None:
        """Their names; None where there were no longer ``count``."""
        names = self._answer(interface, "names").names
        if len(names) != count:
            return None
        return b"".join(one.encode("latin-1")[:NAME_BYTES].ljust(NAME_BYTES, b"\0") for one in names)

    def numbers(self, interface: str, count: int) -> memoryview | None:
        """Their values, as they are now; None where there were no longer ``count``."""
        if self._answer(interface, "numbers").count != count:
            return None
        return memoryview(array("Q", self.values(interface, count)))

    def close(self) -> None:
        """Nothing is held."""

    def values(self, interface: str, count: int) -> list[int]:
        """The first statistics of an interface, as they are now."""
        return [self.value(interface, place, self._node.moment) for place in range(count)]

    def value(self, interface: str, place: int, moment: float) -> int:
        """A statistic at a time of the recording."""
        track = self._numbers.get((interface, place))
        return 0 if track is None else track.at(moment)

    def known_names(self, interface: str) -> tuple[str, ...]:
        """The names of an interface's statistics; none where they were not recorded."""
        track = self._answers.get((interface, "names"))
        return () if track is None else track.at(self._node.moment).names

    def _answer(self, interface: str, command: str) -> lines.Statistics:
        """The answer of now; EOPNOTSUPP for what was not asked when it was recorded."""
        track = self._answers.get((interface, command))
        if track is None:
            raise _error("EOPNOTSUPP")
        answer = track.at(self._node.moment)
        if answer.error:
            raise _error(answer.error)
        return answer


class RecordedKernelLog:
    """The kernel log of a recorded node, newly opened.

    Raises:
        OSError: it could not be opened.
    """

    def __init__(self, node: RecordedNode, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._node = node
        self._began = monotonic() - node.age
        self._lines = [one for one in node.recording.answers if isinstance(one, lines.LogLine)]
        self._next = 0
        self.came = 0
        """When the last record came, microseconds since the recording began; 0: before that."""
        last = next((one.error for one in reversed(self._due())), "")
        if last and last != _OVERWRITTEN:
            raise _error(last, "/dev/kmsg")

    def _due(self) -> list[lines.LogLine]:
        moment = self._node.age
        return [one for one in self._lines if one.at <= moment]

    def read(self) -> bytes | None:
        """The next record; None: none now."""
        if self._next == len(self._lines) or self._lines[self._next].at > self._node.age:
            return None
        line = self._lines[self._next]
        self._next += 1
        if line.error:
            raise _error(line.error, "/dev/kmsg")
        self.came = max(0, round(line.stamp * 1e6))
        stamp = max(0, round((self._began + line.stamp) * 1e6))
        return f"{line.level},{line.number},{stamp},-;{line.text}\n".encode("latin-1", "replace")

    def close(self) -> None:
        """Nothing is held."""


def _error(name: str, file: str | None = None) -> OSError:
    number = getattr(errno, name, errno.EIO)
    return OSError(number, os.strerror(number), file)  # of the class that the number has: BrokenPipeError of EPIPE
