"""The driver's library of a recorded node under faults."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import pynvml

from commwatch_rehearsal.simulation.abi import (
    INSUFFICIENT_SIZE,
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    SUCCESS,
    TIMEOUT,
    UNINITIALIZED,
    Argument,
    integer,
    point,
    pointer_address,
    store,
)
from commwatch_rehearsal.simulation.call import Call
from commwatch_rehearsal.simulation.field_answers import Asked, FieldAnswer
from commwatch_rehearsal.simulation.fields import COUNTERS, LINK_COUNTERS, answer_of
from commwatch_rehearsal.simulation.hardware import Epoch
from commwatch_rehearsal.simulation.library import SimulatedLibrary
from commwatch_rehearsal.simulation.recording.answers import RecordedLibrary
from commwatch_rehearsal.simulation.recording.calls import FIELD_WORDS, memory_of
from commwatch_rehearsal.simulation.recording.faulty_parts import FaultyParts, Span, laid
from commwatch_rehearsal.simulation.recording.node import RecordedNode

_FOREVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class _Entry:
    """A field of a GPU that faults change."""

    place: int
    """Of its words in the caller's memory."""
    key: tuple[int, int, int]
    """Number of the GPU in the recording, field, scope."""
    faulty: FieldAnswer
    healthy: FieldAnswer
    is_counter: bool
    reset: float
    stops: tuple[Span, ...]


class FaultyLibrary(SimulatedLibrary):
    """The simulated library, in which a GPU that answers does so as it was recorded where no fault changes that.

    Sessions, handles, hangs and failures are the simulated ones. A function that was not called when the node was
    recorded is missing.
    """

    def __init__(self, node: RecordedNode, parts: FaultyParts) -> None:
        super().__init__(parts)
        self._played = node
        self._parts = parts
        self._recorded = RecordedLibrary(node)
        self._places = {number: place for place, number in enumerate(parts.numbers)}
        self._epoch: Epoch | None = None
        self._plans: dict[tuple[int, bytes], list[_Entry]] = {}
        own: dict[str, Callable[..., int]] = {
            "nvmlSystemGetNVMLVersion": partial(self._recorded_alone, "nvmlSystemGetNVMLVersion"),
            "nvmlSystemGetConfComputeState": self._confidential_state,
            "nvmlEventSetCreate": partial(self._made, "nvmlEventSetCreate", self._event_sets.create),
            "nvmlEventSetWait_v2": self._wait_for_either,
            "nvmlGpmSampleAlloc": partial(self._made, "nvmlGpmSampleAlloc", self._samples.allocate),
            "nvmlGpmMetricsGet": self._metrics,
        }
        for name in [name for name in vars(self) if name.startswith("nvml")]:
            if not hasattr(self._recorded, name):
                delattr(self, name)
            elif name in own:
                setattr(self, name, partial(own[name]))
        for name in self._recorded.functions:
            if name not in vars(self):
                setattr(self, name, partial(self._recorded_alone, name))

    def initialise(self, flags: Argument = 0) -> int:
        """See ``SimulatedLibrary``; where the recorded driver could not be opened, this one cannot."""
        code: int = self._recorded.nvmlInitWithFlags(flags)
        return code or super().initialise(flags)

    def count(self, count: Argument) -> int:
        """The GPUs that the recorded driver counts, less those that faults take away."""
        if not self._is_open():
            return UNINITIALIZED
        hardware, time = self._parts.now()
        code, listed = self._listed()
        return code or store(count, 0 if hardware.epoch(time).driver_error else len(listed))

    def handle_by_index(self, index: Argument, handle: Argument) -> int:
        """See ``count``."""
        if not self._is_open():
            return UNINITIALIZED
        code, listed = self._listed()
        number = integer(index)
        if code or number >= len(listed):
            return code or INVALID_ARGUMENT
        code, place = listed[number]
        return code or self._open_handle(place, handle)

    def _listed(self) -> tuple[int, list[tuple[int, int | None]]]:
        """The code of the recorded count, and for each index of now that of the recorded handle, and the GPU."""
        counted = ctypes.c_uint(0)
        code = self._recorded.nvmlDeviceGetCount_v2(ctypes.byref(counted))
        hardware, time = self._parts.now()
        present = hardware.epoch(time).enumerated
        listed: list[tuple[int, int | None]] = []
        for index in range(counted.value):
            handle = pynvml.c_nvmlDevice_t()
            answer = self._recorded.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
            place = self._places.get(pointer_address(handle))
            if answer != SUCCESS or place in present:
                listed.append((answer, place))
        return code, listed

    def _answer(self, name: str, read: Callable[..., int], calls: Sequence[Call], arguments: Sequence[Argument]) -> int:
        handles = [ctypes.c_void_p(self._parts.numbers[call.place]) for call in calls]
        recorded: Callable[[], int] = partial(getattr(self._recorded, name), *handles, *arguments)
        if name == "nvmlDeviceGetFieldValues":
            return self._lay_fields(calls[0], recorded, *arguments)
        if name == "nvmlDeviceGetNvLinkErrorCounter":
            return self._lay_link_errors(calls[0], recorded, read, *arguments)
        if name == "nvmlDeviceRegisterEvents":
            return recorded() or read(*calls, *arguments)
        if name == "nvmlGpmSampleGet":
            if calls[0].condition.mig or calls[0].epoch.confidential:
                return NOT_SUPPORTED
            read(*calls, *arguments)  # of a job that a fault brings; a model without GPM refuses
            return recorded()
        healthy = self._parts.healthy
        unharmed = [replace(call, hardware=healthy, epoch=healthy.epoch(call.time)) for call in calls]
        before = _contents(arguments)
        usual = read(*unharmed, *arguments), _contents(arguments)
        _restore(arguments, before)
        code = read(*calls, *arguments)
        faulty = code, _contents(arguments)
        _restore(arguments, before)
        answer = recorded()
        if faulty == usual or answer not in (SUCCESS, INSUFFICIENT_SIZE):
            return answer
        _restore(arguments, faulty[1])
        return code

    def _lay_link_errors(
        self, call: Call, recorded: Callable[[], int], read: Callable[..., int],
        link: Argument, counter: Argument, value: Argument,
    ) -> int:  # fmt: skip
        """Events only: without a fault none is simulated."""
        if (code := recorded()) != SUCCESS:
            return code
        count = memory_of(value).value
        if read(call, link, counter, value) != SUCCESS:
            return SUCCESS
        reset = call.hardware.timeline.last_reset(call.place, call.time)
        track = self._recorded.track("nvmlDeviceGetNvLinkErrorCounter", (
            ctypes.c_void_p(self._parts.numbers[call.place]), link, counter, ctypes.byref(type(memory_of(value))())
        ))  # fmt: skip

        def at(age: float) -> int:
            if age == call.time or track is None:
                return int(count)
            content = track.at(self._played.moment_at(age))[1]
            return int.from_bytes(bytes.fromhex(content[-1] or ""), "little") if content else 0

        return store(value, laid(at, memory_of(value).value, lambda _age: 0, call.time, reset))

    def _lay_fields(self, call: Call, recorded: Callable[[], int], _number: Argument, values: Argument) -> int:
        code = recorded()
        if code != SUCCESS:
            return code
        words = memoryview(memory_of(values)).cast("B").cast("Q")
        if call.epoch is not self._epoch:
            self._epoch = call.epoch
            self._plans.clear()
        ids = words[::FIELD_WORDS].tobytes()
        entries = self._plans.get((call.place, ids))
        if entries is None:
            entries = self._plans[call.place, ids] = list(self._entries(call, words))
        for one in entries:
            kind = words[one.place + 3]
            if kind >> 32 != SUCCESS:
                continue  # the recorded driver had no answer either
            if one.faulty.code != SUCCESS:
                words[one.place + 3] = one.faulty.value_type | one.faulty.code << 32
                words[one.place + 4] = 0
            elif one.healthy.code == SUCCESS:
                words[one.place + 4] = self._value(one, call.time)
        return SUCCESS

    def _value(self, one: _Entry, age: float) -> int:
        faulty = one.faulty.at(age)
        if not one.is_counter:
            return faulty
        track = self._recorded.fields[one.key]
        return laid(
            lambda at: track.at(self._played.moment_at(at))[2], faulty, one.healthy.at, age, one.reset, one.stops
        )

    def _entries(self, call: Call, words: memoryview) -> Sequence[_Entry]:
        """The fields of an array that faults change while this epoch lasts."""
        healthy = self._parts.healthy
        reset = call.hardware.timeline.last_reset(call.place, call.epoch.start)
        found = []
        for place in range(0, len(words), FIELD_WORDS):
            field, scope = words[place] & 0xFFFFFFFF, words[place] >> 32
            one, other = (
                answer_of(Asked(hardware, epoch, call.place, scope), field)
                for hardware, epoch in ((call.hardware, call.epoch), (healthy, healthy.epoch(call.time)))
            )
            # All bits set in place of a count is no count.
            is_counter = field in COUNTERS and not (call.condition.blank and field in LINK_COUNTERS and one.is_flat)
            stops = tuple(self._stops(call, field, scope, other)) if is_counter else ()
            is_same = one.is_flat and other.is_flat and (one.code, one.value) == (other.code, other.value)
            if not is_same or (is_counter and (reset or stops)):
                key = (self._parts.numbers[call.place], field, scope)
                found.append(_Entry(place, key, one, other, is_counter, reset, stops))
        return found

    def _stops(self, call: Call, field: int, scope: int, healthy: FieldAnswer) -> Sequence[Span]:
        """When faults kept a counter from counting: a link was down, or the driver did not count traffic."""
        hardware, start = call.hardware, call.epoch.start
        stale = hardware.timeline.counting("counter_stale", call.place) if healthy.flow is not None else []
        stops = [(fault.start, fault.end) for fault in stale if fault.start <= start]
        nvlink = call.model.nvlink
        if nvlink is None or field not in LINK_COUNTERS or scope >= nvlink.links:
            return stops
        spans = [*hardware.timeline.stretches(0.0, start), (start, _FOREVER)]
        down = [span for span in spans if not hardware.gpus.link_up(call.place, scope, span[0])]
        return [*stops, *(span for span in down if not any(begin <= span[0] < end for begin, end in stops))]

    def _metrics(self, request: Argument) -> int:
        """The recorded metrics, and what a job that a fault brings adds."""
        if not self._is_open():
            return UNINITIALIZED
        code: int = self._recorded.nvmlGpmMetricsGet(request)
        asked = memory_of(request)
        added = type(asked).from_buffer_copy(asked)
        if code != SUCCESS or self._samples.metrics(added) != SUCCESS:
            return code
        for one, more in zip(asked.metrics[: asked.numMetrics], added.metrics, strict=False):
            if one.nvmlReturn == more.nvmlReturn == SUCCESS and more.value == more.value:
                one.value += more.value
        return SUCCESS

    def _made(self, name: str, make: Callable[[Argument], int], argument: Argument) -> int:
        """What the library lends is simulated where the recorded one lent it."""
        if not self._is_open():
            return UNINITIALIZED
        return getattr(self._recorded, name)(argument) or make(argument)

    def _wait_for_either(self, event_set: Argument, data: Argument, milliseconds: Argument) -> int:
        """The next event of the recording, else of the faults."""
        if not self._is_open():
            return UNINITIALIZED
        code: int = self._recorded.nvmlEventSetWait_v2(event_set, data, milliseconds)
        if code == TIMEOUT:
            return self._wait(event_set, data, milliseconds)
        if code == SUCCESS:
            event = memory_of(data)
            place = self._places.get(pointer_address(event))
            point(event, 0 if place is None else ctypes.addressof(self._handles) + place)
        return code

    def _confidential_state(self, state: Argument) -> int:
        hardware, time = self._parts.now()
        if self._is_open() and not hardware.epoch(time).confidential:
            return self._recorded_alone("nvmlSystemGetConfComputeState", state)
        return self.confidential_state(state)

    def _recorded_alone(self, name: str, *arguments: Argument) -> int:
        """A function that no fault changes; a GPU that a fault keeps from answering does not answer."""
        if not self._is_open():
            return UNINITIALIZED
        translated = []
        first = ctypes.addressof(self._handles)
        for argument in arguments:
            one, place = argument, pointer_address(argument) - first if isinstance(argument, ctypes._Pointer) else -1
            if 0 <= place < len(self._parts.numbers):
                call, code = self._reach(one)
                if call is None:
                    return code
                one = ctypes.c_void_p(self._parts.numbers[place])
            translated.append(one)
        answer: int = getattr(self._recorded, name)(*translated)
        return answer


def _contents(arguments: Sequence[Argument]) -> list[bytes | None]:
    return [None if (memory := memory_of(one)) is None else bytes(memory) for one in arguments]


def _restore(arguments: Sequence[Argument], contents: Sequence[bytes | None]) -> None:
    for one, content in zip(arguments, contents, strict=True):
        if content is not None:
            ctypes.memmove(ctypes.addressof(memory_of(one)), content, len(content))
