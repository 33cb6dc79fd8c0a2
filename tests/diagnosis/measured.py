"""Nodes whose probes have given what a test says, as the daemon exposes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support.facts import NOW

SIZE = 64 * 2**20
Numbers = dict[str, dict[Any, float]]


def address(gpu: int) -> str:
    """PCI address of a GPU, each below a root port of its own."""
    return f"0000:{0x10 + gpu:02x}:00.0"


def gpus(count: int, name: str, memory: float | None = None) -> Numbers:
    """So many GPUs of a model, gen 4 x16 each, on root ports; memory in bytes of each, None: not known."""
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


def nvlinks(count: int, version: str) -> Numbers:
    """A link of each GPU to a switch."""
    link = (version, "switch", "0000:c0:00.0", "0")
    return {"commwatch_nvlink_info": {(str(gpu), address(gpu), "0", *link): 1 for gpu in range(count)}}


def probe(
    name: str, rate: float | None, expected: float | None, *, ranks: int, measure: str = "all_reduce",
    source: str = "model", size: int = SIZE, age: float | None = 60.0, backend: str = "nccl",
) -> Numbers:  # fmt: skip
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
    numbers: Numbers = {
        "commwatch_probe_info": {(*key, measure, "8", str(size), str(ranks), "2.30", "", "", source): 1}
    }
    if rate is not None:
        numbers["commwatch_probe_last_bus_bandwidth_bytes_per_second"] = {key: rate}
    if expected is not None:
        numbers["commwatch_probe_expected_bandwidth_bytes_per_second"] = {key: expected}
    if age is not None:
        numbers["commwatch_probe_last_completion_timestamp_seconds"] = {key: NOW - age}
    return numbers


def host_copies(rates: Mapping[int, tuple[float, float]], *, age: float = 60.0, source: str = "model") -> Numbers:
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


def pairs(rates: Mapping[tuple[int, int], float], expected: float, *, both_ways: float = 0.0) -> Numbers:
    """What GPUs sent each other, bytes per second; 16 MiB, a model says what is expected."""
    numbers = probe("pairs", None, None, ranks=2, measure="pairs", size=16 * 2**20)
    keys = {pair: (str(pair[0]), str(pair[1]), "nccl") for pair in rates}
    numbers["commwatch_pair_bandwidth_bytes_per_second"] = {keys[pair]: rate for pair, rate in rates.items()}
    numbers["commwatch_pair_expected_bandwidth_bytes_per_second"] = dict.fromkeys(keys.values(), expected)
    if both_ways:
        numbers["commwatch_pair_both_ways_bandwidth_bytes_per_second"] = dict.fromkeys(keys.values(), both_ways)
    return numbers
