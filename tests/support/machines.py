"""What the page says of small machines, as numbers: their parts, and what their probes have given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from support.facts import NOW, Numbers

Rows: TypeAlias = dict[tuple[str, ...], float]
NodeNumbers: TypeAlias = dict[str, dict[Any, float]]
"""Numbers that a test may change."""

CARDS = ("0000:23:00.0", "0000:24:00.0", "0000:63:00.0", "0000:64:00.0")
"""Four cards without NVLink: 0 and 1 under one PCIe switch, 2 and 3 under another one."""
SWITCHES = ("0000:21:00.0", "0000:61:00.0")
"""Upstream ports of the two switches."""
HGX = ("0000:17:00.0", "0000:18:00.0", "0000:97:00.0", "0000:98:00.0")
"""Four GPUs on NVSwitches."""
NVSWITCH = "0000:08:00.0"
LINKS = 2
"""Of each GPU on NVSwitches."""


def merged(*parts: Numbers) -> NodeNumbers:
    """All of them together; of one series the later wins."""
    found: NodeNumbers = {}
    for part in parts:
        for metric, series in part.items():
            found.setdefault(metric, {}).update(series)
    return found


def without(numbers: Numbers, *metrics: str) -> NodeNumbers:
    """The same without some metrics."""
    return {metric: dict(series) for metric, series in numbers.items() if metric not in metrics}


def identities(addresses: tuple[str, ...]) -> Numbers:
    """The identities of GPUs, by index."""
    rows = {(str(index), address, f"GPU-{index}", "", "GPU", "") for index, address in enumerate(addresses)}
    return {"commwatch_gpu_info": dict.fromkeys(rows, 1.0)}


def bridges(parents: Mapping[str, str]) -> Numbers:
    """PCIe devices by what is above them."""
    rows = {(device, "switch_port", parent, "0", "", "") for device, parent in parents.items()}
    return {"commwatch_pcie_device_info": dict.fromkeys(rows, 1.0)}


def four_cards() -> Numbers:
    """Two PCIe switches at two root ports, with two cards each."""
    parents: dict[str, str] = {}
    for root, cards in (("20", CARDS[:2]), ("60", CARDS[2:])):
        base = int(root, 16)
        port, upstream = f"0000:{root}:01.0", f"0000:{base + 1:02x}:00.0"
        parents |= {port: f"pci0000:{root}", upstream: port}
        for number, card in enumerate(cards):
            downstream = f"0000:{base + 2:02x}:{number:02x}.0"
            parents |= {downstream: upstream, card: downstream}
    return merged(identities(CARDS), bridges(parents))


def four_on_nvswitch() -> Numbers:
    """Four GPUs that reach each other over an NVSwitch, each with a PCIe link to the CPU."""
    rows: Rows = {
        (str(index), address, str(link), "4.0", "switch", NVSWITCH, str(LINKS * index + link)): 1.0
        for index, address in enumerate(HGX)
        for link in range(LINKS)
    }
    expected: Rows = dict.fromkeys(((index, address, link) for index, address, link, *_ in rows), 1.0)
    roots = {address: f"{address[:-4]}01.0" for address in HGX}
    parents = roots | {root: f"pci{address[:7]}" for address, root in roots.items()}
    links: Numbers = {"commwatch_nvlink_info": rows, "commwatch_nvlink_link_expected": expected}
    return merged(identities(HGX), bridges(parents), links)


SIZE = 64 * 2**20
"""Bytes of a probe's large messages."""


def address(gpu: int) -> str:
    """PCI address of a GPU, each below a root port of its own."""
    return f"0000:{0x10 + gpu:02x}:00.0"


def gpus(count: int, name: str, memory: float | None = None) -> NodeNumbers:
    """GPUs of a model, gen 4 x16 each, on root ports; memory in bytes of each, None: not known."""
    ports = {gpu: f"0000:0{gpu}:01.0" for gpu in range(count)}
    devices = [*map(address, range(count)), *ports.values()]
    info: dict[Any, float] = {(address(gpu), "gpu", port, "0", "", ""): 1 for gpu, port in ports.items()}
    info |= {(port, "root_port", "pci0000:00", "0", "", ""): 1 for port in ports.values()}
    return {
        "commwatch_gpu_info": {(str(gpu), address(gpu), f"GPU-{gpu}", "", name, ""): 1 for gpu in range(count)},
        "commwatch_gpu_memory_size_bytes": {
            (str(gpu), address(gpu)): memory for gpu in range(count) if memory is not None
        },
        "commwatch_pcie_device_info": info,
        "commwatch_pcie_device_link_generation_max": {(device,): 4 for device in devices},
        "commwatch_pcie_device_link_width_max_lanes": {(device,): 16 for device in devices},
    }


def nvlinks(count: int, version: str) -> NodeNumbers:
    """A link of each GPU to a switch."""
    link = (version, "switch", "0000:c0:00.0", "0")
    return {"commwatch_nvlink_info": {(str(gpu), address(gpu), "0", *link): 1 for gpu in range(count)}}


def probe(
    name: str, rate: float | None, expected: float | None, *, ranks: int, measure: str = "all_reduce",
    source: str = "model", size: int = SIZE, age: float | None = 60.0, backend: str = "nccl",
) -> NodeNumbers:  # fmt: skip
    """A probe and its last result; None for what is absent.

    Args:
        name: of the probe.
        rate: bus bandwidth, bytes per second.
        expected: what it should be.
        ranks: that take part.
        measure: what it measures.
        source: of what is expected.
        size: of the large messages in bytes.
        age: of the last result in seconds.
        backend: of the probe.
    """
    key = (name, backend)
    numbers: NodeNumbers = {
        "commwatch_probe_info": {(*key, measure, "8", str(size), str(ranks), "2.30", "", "", source): 1}
    }
    if rate is not None:
        numbers["commwatch_probe_last_bus_bandwidth_bytes_per_second"] = {key: rate}
    if expected is not None:
        numbers["commwatch_probe_expected_bandwidth_bytes_per_second"] = {key: expected}
    if age is not None:
        numbers["commwatch_probe_last_completion_timestamp_seconds"] = {key: NOW - age}
    return numbers


def host_copies(rates: Mapping[int, tuple[float, float]], *, age: float = 60.0, source: str = "model") -> NodeNumbers:
    """Copies to and from each GPU, bytes per second; 24 GB/s are expected each way."""
    numbers = probe("host_copies", None, None, ranks=len(rates), measure="host_copies", source=source, age=age)
    key = ("host_copies", "nccl")
    found: dict[Any, float] = {}
    for gpu, (there, back) in rates.items():
        found[(*key, str(gpu), address(gpu), "host_to_device")] = there
        found[(*key, str(gpu), address(gpu), "device_to_host")] = back
    numbers["commwatch_probe_copy_bandwidth_bytes_per_second"] = found
    numbers["commwatch_probe_copy_expected_bandwidth_bytes_per_second"] = dict.fromkeys(found, 24e9)
    return numbers


def pairs(rates: Mapping[tuple[int, int], float], expected: float, *, both_ways: float = 0.0) -> NodeNumbers:
    """What GPUs sent each other, bytes per second; 16 MiB, a model says what is expected."""
    numbers = probe("pairs", None, None, ranks=2, measure="pairs", size=16 * 2**20)
    keys = {pair: (str(pair[0]), str(pair[1]), "nccl") for pair in rates}
    numbers["commwatch_pair_bandwidth_bytes_per_second"] = {keys[pair]: rate for pair, rate in rates.items()}
    numbers["commwatch_pair_expected_bandwidth_bytes_per_second"] = dict.fromkeys(keys.values(), expected)
    if both_ways:
        numbers["commwatch_pair_both_ways_bandwidth_bytes_per_second"] = dict.fromkeys(keys.values(), both_ways)
    return numbers


ROOT, UPSTREAM = "0000:10:01.0", "0000:11:00.0"
GPUS = ("0000:13:00.0", "0000:14:00.0")
NICS = ("0000:15:00.0", "0000:16:00.0")
_PORTS = tuple(f"0000:12:{slot:02x}.0" for slot in range(4))


def switched_node() -> NodeNumbers:
    """Two GPUs with two NVLinks between them, and two RDMA adapters, under one PCIe switch; nothing learned yet."""
    places = dict(zip(_PORTS, (*GPUS, *NICS), strict=True))
    devices = {
        ROOT: ("switch_port", "pci0000:10"),
        UPSTREAM: ("switch_port", ROOT),
        **dict.fromkeys(_PORTS, ("switch_port", UPSTREAM)),
        **{end: ("gpu" if end in GPUS else "nic", port) for port, end in places.items()},
    }
    links: NodeNumbers = {
        "commwatch_pcie_device_link_generation": dict.fromkeys(((one,) for one in devices), 4.0),
        "commwatch_pcie_device_link_generation_max": dict.fromkeys(((one,) for one in devices), 5.0),
        "commwatch_pcie_device_link_width_lanes": dict.fromkeys(((one,) for one in devices), 16.0),
        "commwatch_pcie_device_link_width_max_lanes": dict.fromkeys(((one,) for one in devices), 16.0),
    }
    gpus = [(str(index), address) for index, address in enumerate(GPUS)]
    nvlinks = [(*gpu, str(link)) for gpu in gpus for link in range(2)]
    return {
        **links,
        "commwatch_present": {("gpu",): 2.0},
        "commwatch_gpu_info": {(*gpu, f"GPU-{gpu[0]}", "", "NVIDIA H100 80GB HBM3", "Hopper"): 1.0 for gpu in gpus},
        "commwatch_gpu_state": dict.fromkeys(gpus, 0.0),
        "commwatch_pcie_device_info": {
            (device, role, parent, "0", "", ""): 1.0 for device, (role, parent) in devices.items()
        },
        "commwatch_nvlink_links": dict.fromkeys(gpus, 2.0),
        "commwatch_nvlink_link_state": dict.fromkeys(nvlinks, 1.0),
        "commwatch_nvlink_info": {
            (*link, "4.0", "gpu", GPUS[1 - int(link[0])], link[2]): 1.0 for link in nvlinks
        },
        "commwatch_gpu_p2p_status": {
            ("0", GPUS[0], "1", GPUS[1], "read"): 0.0, ("1", GPUS[1], "0", GPUS[0], "read"): 0.0,
        },
        "commwatch_rdma_port_info": {
            (f"mlx5_{place}", "1", "InfiniBand", "0x2", "0x1", "28.39", "MT4129", address, ""): 1.0
            for place, address in enumerate(NICS)
        },
    }  # fmt: skip
