"""Sections on the driver: what it answers, what its calls cost, its events, and its samples of PCIe traffic."""

from __future__ import annotations

import ctypes
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pynvml
from benchmarks.hardware.cuda import Cuda, CudaError
from benchmarks.hardware.place import CannotRun, Fact, Place, answer, report, text_of

from commwatch.config.settings import Sources
from commwatch.readings import SourceUnavailable
from commwatch.sources.base import Origin, Source
from commwatch.sources.nvml.gpu import pci_bus_id
from commwatch.workers.sources import SOURCES

RUNS = 7
_LONGEST_GROUP_SECONDS = 5.0
_GPM_PAUSE_SECONDS = 0.15
_ALL_LINKS = 0xFFFFFFFF
_TRAFFIC = (138, 139, 140, 141)
_NVLINK_5_ERRORS = range(206, 223)
_PCIE_BYTES, _PCIE_ERRORS = (197, 198), range(173, 184)
_RECOVERY_ACTION, _LINK_SPEED = 230, 164
_CALLS: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("utilization", "nvmlDeviceGetUtilizationRates", ()),
    ("memory", "nvmlDeviceGetMemoryInfo", ()),
    ("power", "nvmlDeviceGetPowerUsage", ()),
    ("process_list", "nvmlDeviceGetComputeRunningProcesses", ()),
)


def driver(place: Place) -> None:
    """Read the first GPU through single calls, and time each group of counters of the daemon's reader."""
    handles = place.open_driver()
    handle = handles[0]
    processes = [len(answer(pynvml.nvmlDeviceGetComputeRunningProcesses, one)[0] or ()) for one in handles]
    report(
        driver_version=text_of(pynvml.nvmlSystemGetDriverVersion()),
        nvml_version=text_of(pynvml.nvmlSystemGetNVMLVersion()),
        cuda_driver_version=pynvml.nvmlSystemGetCudaDriverVersion_v2(),
        gpus=len(handles),
        gpu_name=text_of(pynvml.nvmlDeviceGetName(handle)),
        architecture=answer(pynvml.nvmlDeviceGetArchitecture, handle)[0],
        compute_processes=sum(processes),
        memory_used_mebibytes=max(_used(one) for one in handles) / 2**20,
        mig=bool((answer(pynvml.nvmlDeviceGetMigMode, handle)[0] or (0,))[0]),
    )
    for part in (_nvlink, _fields, _others, _call_costs):
        found, error = answer(part, handle)
        report(**(found or {f"error_of{part.__name__}": error}))
    _group_costs(place, len(handles))


def _used(handle: Any) -> int:
    """Bytes in use beside the driver's own, as far as the driver tells them apart."""
    memory, error = answer(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used if error else memory.used)


def _nvlink(handle: Any) -> dict[str, Fact]:
    states = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state, error = answer(pynvml.nvmlDeviceGetNvLinkState, handle, link)
        if error:
            break
        states.append(state)
    version, version_error = answer(pynvml.nvmlDeviceGetNvLinkVersion, handle, 0)
    [speed] = pynvml.nvmlDeviceGetFieldValues(handle, [(_LINK_SPEED, 0)])
    return {
        "nvlink_links": len(states),
        "nvlink_active_links": sum(states),
        "nvlink_version_code": version,
        "nvlink_version_error": version_error,
        "nvlink_speed_megabytes_per_second": speed.value.uiVal if speed.nvmlReturn == 0 else None,
    }


def _fields(handle: Any) -> dict[str, Fact]:
    """Return codes by how often they came, types, and the time of one call of 72 entries."""

    def codes(fields: Any) -> dict[str, int]:
        values = pynvml.nvmlDeviceGetFieldValues(handle, [(field, 0) for field in fields])
        return dict(Counter(str(value.nvmlReturn) for value in values))

    def types(fields: Any) -> list[str]:
        values = pynvml.nvmlDeviceGetFieldValues(handle, list(fields))
        return sorted({str(value.valueType) for value in values if value.nvmlReturn == 0})

    asked = [(field, link) for link in range(18) for field in _TRAFFIC]
    [total] = pynvml.nvmlDeviceGetFieldValues(handle, [(_TRAFFIC[0], _ALL_LINKS)])
    return {
        "codes_of_nvlink_5_errors": codes(_NVLINK_5_ERRORS),
        "codes_of_nvlink_traffic": codes(_TRAFFIC),
        "code_of_nvlink_traffic_total": total.nvmlReturn,
        "types_of_pcie_bytes": types(_PCIE_BYTES),
        "types_of_pcie_errors": types(_PCIE_ERRORS),
        "recovery_action": next(
            (one.value.uiVal for one in pynvml.nvmlDeviceGetFieldValues(handle, [_RECOVERY_ACTION])
             if one.nvmlReturn == 0), None,
        ),
        "call_of_72_fields_milliseconds": _median(partial(pynvml.nvmlDeviceGetFieldValues, handle, asked)) * 1e3,
    }  # fmt: skip


def _others(handle: Any) -> dict[str, Fact]:
    support, gpm_error = answer(pynvml.nvmlGpmQueryDeviceSupport, handle)
    fabric = pynvml.c_nvmlGpuFabricInfo_v3_t()
    _, fabric_error = answer(pynvml.nvmlDeviceGetGpuFabricInfoV, handle, ctypes.byref(fabric))
    return {
        "gpm": bool(support and support.isSupportedDevice),
        "gpm_error": gpm_error,
        "fabric_state": None if fabric_error else fabric.state,
        "fabric_error": fabric_error,
        "pcie_generation_idle": answer(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, handle)[0],
        "pcie_generation_maximum": answer(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle)[0],
        "pcie_lanes": answer(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle)[0],
    }


def _call_costs(handle: Any) -> dict[str, Fact]:
    found: dict[str, Fact] = {}
    for name, function, arguments in _CALLS:
        call = getattr(pynvml, function)
        if not answer(call, handle, *arguments)[1]:
            found[f"{name}_microseconds"] = _median(partial(call, handle, *arguments)) * 1e6
    return found


def _median(call: Callable[[], object]) -> float:
    """Seconds of one call, median of several."""
    times = []
    for _ in range(RUNS):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _group_costs(place: Place, gpus: int) -> None:
    """Run each collector of the real source; reports each for itself, as any may hang."""
    sysfs, procfs = place.trees
    row = SOURCES["nvml"]
    source = row.make(Origin(sysfs, procfs, Sources(), is_simulated=bool(place.preset)))
    started = time.perf_counter()
    try:
        source.open(lambda device: None, frozenset(), None)
    except SourceUnavailable as error:
        raise CannotRun(f"{error.reason}: {error.detail}") from error
    try:
        report(open_milliseconds=(time.perf_counter() - started) * 1e3)
        for collector in source.collectors:
            report(**_group_cost(source, collector, gpus))
    finally:
        source.close()


def _group_cost(source: Source, collector: str, gpus: int) -> dict[str, Fact]:
    walls: list[float] = []
    cpu = 0.0
    values, absent = 0, Counter[str]()
    while len(walls) < RUNS and sum(walls) < _LONGEST_GROUP_SECONDS:
        if collector == "gpm":
            time.sleep(_GPM_PAUSE_SECONDS)  # the driver wants more than 100 ms between two samples
        began, cpu_began = time.perf_counter(), time.thread_time()
        batch = source.collect(collector)
        walls.append(time.perf_counter() - began)
        cpu += time.thread_time() - cpu_began
        values = sum(value is not None for one in batch.readings for value in one.values)
        absent = Counter(str(one.reason) for one in batch.absences)
    return {
        f"group_{collector}_milliseconds_per_gpu": statistics.median(walls) * 1e3 / gpus,
        f"group_{collector}_longest_milliseconds": max(walls) * 1e3,
        f"group_{collector}_cpu_milliseconds": cpu / len(walls) * 1e3,
        f"group_{collector}_values": values,
        f"group_{collector}_absent": dict(absent),
    }


def events(place: Place) -> None:
    """Event sets: the types that are known, the wait, and the GPU operational events of drivers from 615 on."""
    handle = place.open_driver()[0]
    types, error = answer(pynvml.nvmlDeviceGetSupportedEventTypes, handle)
    report(event_types="" if types is None else hex(types), event_types_error=error)
    events, error = answer(pynvml.nvmlEventSetCreate)
    if error:
        raise CannotRun(f"nvmlEventSetCreate: {error}")
    try:
        started = time.perf_counter()
        _, error = answer(pynvml.nvmlEventSetWait_v2, events, 100)
        report(wait_v2_answer=error, wait_v2_milliseconds=(time.perf_counter() - started) * 1e3)
        _operational(events, text_of(pynvml.nvmlDeviceGetUUID(handle)))
    finally:
        answer(pynvml.nvmlEventSetFree, events)


def _operational(events: Any, uuid: str) -> None:
    names = ("nvmlEventSetRegisterGpuOperationalEvents_v1", "nvmlEventSetWait_v3")
    missing = [name for name in names if not hasattr(pynvml, name)]
    if missing:
        report(operational_events=f"nvidia-ml-py has no {' and no '.join(missing)}")
        return
    config = pynvml.c_nvmlGpuOperationalEventConfig_v1_t(uuid)
    _, error = answer(pynvml.nvmlEventSetRegisterGpuOperationalEvents_v1, events, config)
    wait = pynvml.c_nvmlEventSetWait_v3_t()
    wait.timeoutMs = 0
    _, wait_error = answer(pynvml.nvmlEventSetWait_v3, events, wait)
    report(
        operational_events=error or "present", wait_v3=wait_error or "an event",
        operational_events_present=error != str(pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)),
    )  # fmt: skip


def pcie(place: Place) -> None:
    """The sampled PCIe traffic: how long a call blocks, and its unit, by copies whose rate is known."""
    handle = place.open_driver()[0]
    _, error = answer(pynvml.nvmlDeviceGetPcieThroughput, handle, pynvml.NVML_PCIE_UTIL_RX_BYTES)
    if error:
        raise CannotRun(f"nvmlDeviceGetPcieThroughput: {error}")
    for name, counter in (("transmit", pynvml.NVML_PCIE_UTIL_TX_BYTES), ("receive", pynvml.NVML_PCIE_UTIL_RX_BYTES)):
        block = _median(partial(pynvml.nvmlDeviceGetPcieThroughput, handle, counter))
        report(**{f"pcie_{name}_call_milliseconds": block * 1e3,
                  f"pcie_{name}_idle": pynvml.nvmlDeviceGetPcieThroughput(handle, counter)})  # fmt: skip
    if place.preset:
        report(copies="a simulated GPU has no memory")
        return
    try:
        with _copies(pci_bus_id(pynvml.nvmlDeviceGetPciInfo(handle))) as rate:
            time.sleep(1.0)
            samples = [pynvml.nvmlDeviceGetPcieThroughput(handle, pynvml.NVML_PCIE_UTIL_RX_BYTES) for _ in range(RUNS)]
            generation = pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)
            bytes_per_second = rate()
    except CudaError as error:
        report(copies=str(error))
        return
    report(
        pcie_generation_busy=generation,
        host_to_device_bytes_per_second=bytes_per_second,
        pcie_receive_busy=statistics.median(samples),
        pcie_receive_unit_bytes=bytes_per_second / statistics.median(samples) if any(samples) else None,
    )


@contextmanager
def _copies(address: str) -> Iterator[Callable[[], float]]:
    """Copies from the host in a thread; gives what returns their mean rate so far, bytes per second."""
    size = 64 * 2**20
    copied, over, errors = [0], threading.Event(), list[CudaError]()
    ready = threading.Event()

    def copy() -> None:
        try:
            with Cuda(address) as cuda:
                to, of = cuda.allocate(size), cuda.allocate_on_host(size)
                cuda.copy_to_device(to, of, size)
                ready.set()
                while not over.is_set():
                    cuda.copy_to_device(to, of, size)
                    copied[0] += size
        except CudaError as error:
            errors.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=copy)
    thread.start()
    try:
        ready.wait()
        if errors:
            raise errors[0]
        began = time.perf_counter()
        yield lambda: copied[0] / (time.perf_counter() - began)
    finally:
        over.set()
        thread.join()
    if errors:
        raise errors[0]
