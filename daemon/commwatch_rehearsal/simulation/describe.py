"""Presets in words, for ``commwatch simulate``."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from commwatch_rehearsal.simulation.presets.parts import Preset

_NVLINK_NAMES = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
"""NVLink version by NVML's code."""


@dataclass(frozen=True)
class NodeDescription:
    name: str
    gpus: str
    nvlink: str
    pcie: str
    network: str
    rdma: str
    driver: str


def describe_node(preset: Preset) -> NodeDescription:
    model = preset.model
    return NodeDescription(
        name=preset.name,
        gpus=f"{len(preset.gpus)} × {model.name.removeprefix('NVIDIA ')}",
        nvlink=_nvlink(preset),
        pcie=_pcie(preset),
        network=_network(preset),
        rdma=_rdma(preset),
        driver=preset.driver_version,
    )


def _nvlink(preset: Preset) -> str:
    nvlink = preset.model.nvlink
    if nvlink is None:
        return "none"
    text = f"{nvlink.links} links of NVLink {_NVLINK_NAMES[nvlink.version]} per GPU"
    rate = f"{nvlink.line_rate_megabytes_per_second:,} MB/s per link and direction"
    if nvlink.remote == "none":
        return f"{text}, all inactive: no bridge is fitted"
    if nvlink.remote == "bridge":
        return f"{text}, bridges between GPUs 0 and 1, 2 and 3, …; {rate}"
    if nvlink.remote == "gpu":
        per_peer = Counter(peer[0] for link in range(nvlink.links) if (peer := preset.peer(0, link)) is not None)
        return f"{text}, {min(per_peer.values(), default=0)} to each other GPU; {rate}"
    switches = f"{len(preset.nvswitches)} NVSwitches" if preset.nvswitches else "switches that the host does not see"
    return f"{text}, to {switches}; {rate}"


def _pcie(preset: Preset) -> str:
    devices = {device.address: device for device in preset.devices}
    switches: Counter[str] = Counter()
    direct = 0
    for gpu in preset.gpus:
        above = [one for one in preset.ancestors(gpu.pci_address) if one in devices]
        switch = next((one for one in above if devices[one].role == "switch_upstream"), None)
        switches.update([switch] if switch is not None else [])
        direct += switch is None
    parts = [f"gen{preset.model.pcie_generation} x{preset.model.pcie_width}"]
    if switches:
        each = "/".join(str(count) for count in sorted(set(switches.values())))
        parts.append(f"{each} GPUs below each of {len(switches)} switches")
    if direct:
        parts.append("a root port for each GPU" if direct > 1 else "one root port")
    nodes = {devices[gpu.pci_address].numa_node for gpu in preset.gpus}
    parts.append("NUMA unknown" if nodes == {-1} else f"{len(nodes)} NUMA node{'s' if len(nodes) > 1 else ''}")
    return "; ".join(parts)


def _network(preset: Preset) -> str:
    parts = [
        f"`{one.name}` {one.speed_megabits_per_second // 1000} Gbit/s{f' in `{one.bond}`' if one.bond else ''}"
        for one in preset.interfaces
    ]
    return ", ".join(parts) or "none"


def _rdma(preset: Preset) -> str:
    parts = []
    for layer in ("InfiniBand", "Ethernet"):
        ports = [port for port in preset.rdma_ports if port.link_layer == layer]
        for rate in sorted({port.rate_gigabits_per_second for port in ports}, reverse=True):
            names = [port.device for port in ports if port.rate_gigabits_per_second == rate]
            span = f"`{names[0]}`" if len(names) == 1 else f"`{names[0]}` to `{names[-1]}`"
            parts.append(f"{len(names)} × {'RoCE' if layer == 'Ethernet' else layer} {rate} Gbit/s ({span})")
    return "; ".join(parts) or "none"
