"""Builds the stand-in driver of a simulated node: asks the simulation once, and compiles what it answered.

Example: python -m benchmarks.driver.build h100x8 /tmp/standin, then LD_LIBRARY_PATH=/tmp/standin nvitop
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pynvml

from commwatch_rehearsal.simulation.library import install
from commwatch_rehearsal.simulation.node import SimulatedNode

SOURCE = Path(__file__).with_name("library.c")
_SONAME = "libnvidia-ml.so.1"
_FIELD_IDS = 400
"""Ids of fields that are asked for; beyond them the driver knows none."""
_METRICS = 340
_ALL_LINKS = 0xFFFFFFFF
_UPTIME_SECONDS = 3600.0

LONG_NUMBERS = (
    "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetSupportedEventTypes",
)  # fmt: skip
NUMBERS = (
    "nvmlDeviceGetArchitecture", "nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetGpuMaxPcieLinkGeneration", "nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetComputeMode", "nvmlDeviceGetPersistenceMode", "nvmlDeviceGetPerformanceState",
    "nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetIndex", "nvmlDeviceGetMinorNumber",
)  # fmt: skip

# Any: handles and structures of the binding, which has no types.
Answer = tuple[int, Any]


def build(node: str, directory: Path, copies: int = 1) -> None:
    """Write ``libnvidia-ml.so.1`` into a directory.

    Args:
        node: preset or file of a node, idle and healthy.
        directory: where to; made if it is not there.
        copies: how many times its GPUs are there, each time in a PCI domain of their own.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "answers.h").write_text(answers(node, copies), encoding="ascii")
    subprocess.run(
        ["cc", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", f"-Wl,-soname,{_SONAME}", f"-I{directory}",
         "-o", str(directory / _SONAME), str(SOURCE)],
        check=True,
    )  # fmt: skip


def answers(preset: str, copies: int) -> str:
    """The tables of a node, as the C source includes them."""
    clock = time.time()
    node = SimulatedNode(preset, None, clock - _UPTIME_SECONDS, lambda: clock)
    install(node)
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    links = node.preset.model.nvlink.links if node.preset.model.nvlink is not None else 0
    places = range(max(links, 1))
    scopes = [*places, _ALL_LINKS]
    first = [_fields(handle, scopes) for handle in handles] * copies
    rates = [_rates(handle, lambda: _wait(node)) for handle in handles] * copies
    node._clock = lambda: clock + 1.0
    second = [_fields(handle, scopes) for handle in handles] * copies
    gpus = [_gpu(handle, domain) for domain in range(copies) for handle in handles]
    handles *= copies
    known = [field for field in range(_FIELD_IDS) if any(code != 3 for code, _, _ in first[0][field])]
    rows = [known.index(field) + 1 if field in known else 0 for field in range(_FIELD_IDS)]
    tables = [
        f"#define GPUS {len(handles)}", f"#define LINKS {max(links, 1)}", f"#define HAS_LINKS {links}u",
        f"#define FIELD_IDS {_FIELD_IDS}", f"#define ROWS {len(known)}", f"#define METRICS {_METRICS}",
        f'#define DRIVER "{pynvml.nvmlSystemGetDriverVersion()}"',
        f'#define LIBRARY "{pynvml.nvmlSystemGetNVMLVersion()}"',
        f"#define CUDA {pynvml.nvmlSystemGetCudaDriverVersion_v2()}",
        f"#define CONFIDENTIAL {_asked(pynvml.nvmlSystemGetConfComputeState)[0]}",
        _table("gpu gpus[GPUS]", gpus),
        _table("nvlink nvlinks[GPUS][LINKS]", (_braced(_link(one, link) for link in places) for one in handles)),
        _table("unsigned char rows[FIELD_IDS]", map(str, rows)),
        _table("counter counters[GPUS][ROWS][LINKS + 1]", (
            _braced(_braced(map(_counter, before[field], after[field])) for field in known)
            for before, after in zip(first, second, strict=True)
        )),
        _table("double rates[GPUS][METRICS]", (_braced(map(repr, one)) for one in rates)),
        _table("unsigned char p2p[GPUS][GPUS][5]", (
            _braced(_braced(str(_asked(pynvml.nvmlDeviceGetP2PStatus, one, other, index)[1] or 0) for index in range(5))
                    for other in handles)
            for one in handles
        )),
    ]  # fmt: skip
    return "\n".join(tables) + "\n"


def _wait(node: SimulatedNode) -> None:
    """Let a second pass on the node."""
    before = node._clock()
    node._clock = lambda: before + 1.0


def _asked(function: Callable[..., Any], *arguments: Any) -> Answer:
    """Code and answer of a call; no answer where it failed."""
    try:
        return 0, function(*arguments)
    except pynvml.NVMLError as error:
        return error.value, None


def _fields(handle: Any, scopes: Sequence[int]) -> list[list[tuple[int, int, int]]]:
    """Code, type and value by field id and scope."""
    found = []
    for field in range(_FIELD_IDS):
        values = (pynvml.c_nvmlFieldValue_t * len(scopes))()
        for value, scope in zip(values, scopes, strict=True):
            value.fieldId, value.scopeId = field, scope
        code = pynvml.nvmlLib.nvmlDeviceGetFieldValues(handle, ctypes.c_int(len(scopes)), ctypes.byref(values))
        if code:
            raise pynvml.NVMLError(code)
        found.append([(value.nvmlReturn, value.valueType, value.value.ullVal) for value in values])
    return found


def _counter(before: tuple[int, int, int], after: tuple[int, int, int]) -> str:
    code, kind, value = before
    return f"{{{code}, {kind}, {float(after[2] - value)!r}f, {value}u}}"


def _rates(handle: Any, wait: Callable[[], None]) -> list[float]:
    """Averages of GPM by metric; negative where there is none."""
    nothing = [-1.0] * _METRICS
    code, support = _asked(pynvml.nvmlGpmQueryDeviceSupport, handle)
    if code or not support.isSupportedDevice:
        return nothing
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    request.sample1, request.sample2 = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
    pynvml.nvmlGpmSampleGet(handle, request.sample1)
    wait()
    pynvml.nvmlGpmSampleGet(handle, request.sample2)
    count = min(_METRICS, len(request.metrics))
    request.numMetrics = count
    for number in range(count):
        request.metrics[number].metricId = number
    pynvml.nvmlGpmMetricsGet(request)
    return [-1.0 if one.nvmlReturn else one.value for one in request.metrics[:count]] + nothing[count:]


def _gpu(handle: Any, domain: int) -> str:
    pci, uuid = pynvml.nvmlDeviceGetPciInfo(handle), pynvml.nvmlDeviceGetUUID(handle)
    if domain:  # a copy
        pci.domain = domain
        pci.busIdLegacy = f"{domain:04X}{_text(pci.busIdLegacy)[4:]}".encode()
        pci.busId = f"{domain:08X}{_text(pci.busId)[8:]}".encode()
        uuid = f"{uuid[:-4]}{domain:04x}"
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    code, mode = _asked(pynvml.nvmlDeviceGetMigMode, handle)
    gpm_code, support = _asked(pynvml.nvmlGpmQueryDeviceSupport, handle)
    fabric = pynvml.c_nvmlGpuFabricInfo_v3_t()
    fabric_code, _ = _asked(pynvml.nvmlDeviceGetGpuFabricInfoV, handle, ctypes.byref(fabric))
    members = {
        "name": _quoted(_asked(pynvml.nvmlDeviceGetName, handle)[1]),
        "uuid": _quoted(uuid),
        "serial": _quoted(_asked(pynvml.nvmlDeviceGetSerial, handle)[1]),
        "pci": _pci(pci),
        "memory_bytes": str(memory.total),
        "memory_reserved_bytes": str(memory.reserved),
        "memory_used_bytes": str(memory.used),
        "temperature_celsius": str(pynvml.nvmlDeviceGetTemperature(handle, 0)),
        "utilization_percent": str(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        "clocks": _braced(str(pynvml.nvmlDeviceGetClockInfo(handle, kind)) for kind in range(4)),
        "mig": _answer((code, mode[0] if mode else 0)),
        "gpm": _answer((gpm_code, support.isSupportedDevice if support else 0)),
        "fabric": _answer((fabric_code, 0)),
        "fabric_info": _braced(map(str, bytes(fabric))),
    }
    members |= {name: _answer(_number(name, handle, ctypes.c_ulonglong())) for name in LONG_NUMBERS}
    members |= {name: _answer(_number(name, handle, ctypes.c_uint())) for name in NUMBERS}
    return _braced(f".{name} = {value}" for name, value in members.items())


def _number(name: str, handle: Any, to: ctypes.c_uint | ctypes.c_ulonglong, *place: int) -> Answer:
    code = getattr(pynvml.nvmlLib, name)(handle, *place, ctypes.byref(to))
    return code, to.value


def _link(handle: Any, link: int) -> str:
    code, remote = _asked(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
    return _braced((
        _answer(_number("nvmlDeviceGetNvLinkState", handle, ctypes.c_uint(), link)),
        _answer(_number("nvmlDeviceGetNvLinkVersion", handle, ctypes.c_uint(), link)),
        _answer(_number("nvmlDeviceGetNvLinkRemoteDeviceType", handle, ctypes.c_uint(), link)),
        str(code),
        _pci(remote) if remote else "{0}",
    ))  # fmt: skip


def _pci(info: Any) -> str:
    numbers = (info.domain, info.bus, info.device, info.pciDeviceId, info.pciSubSystemId)
    return _braced((_quoted(info.busIdLegacy), *map(str, numbers), _quoted(info.busId)))


def _answer(answer: Answer) -> str:
    return f"{{{answer[0]}, {answer[1] or 0}u}}"


def _quoted(text: str | bytes | None) -> str:
    return "0" if text is None else f'"{_text(text)}"'


def _text(text: str | bytes) -> str:
    return text.decode() if isinstance(text, bytes) else text


def _braced(parts: Iterable[str]) -> str:
    return "{" + ", ".join(parts) + "}"


def _table(declaration: str, rows: Iterable[str]) -> str:
    return f"static const {declaration} = {{\n" + ",\n".join(rows) + "\n};"


def main() -> None:
    """Build and say where it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("node", help="preset (commwatch simulate --list) or file of a node")
    parser.add_argument("directory", type=Path, help="where the library is written")
    parser.add_argument("--copies", type=int, default=1, help="how many times its GPUs are there (default 1)")
    given = parser.parse_args()
    build(given.node, given.directory, given.copies)
    print(given.directory / _SONAME)


if __name__ == "__main__":
    main()
