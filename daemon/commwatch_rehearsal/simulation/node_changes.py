"""Changes to a preset: fewer GPUs, other links, other places, other adapters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from commwatch_rehearsal.simulation.presets.parts import PciDevice, Preset

_BRIDGES = {"root_port", "switch_upstream", "switch_downstream"}
_FIRST_BUS, _BUSES = 1, 256
_SLOTS = 32
_ROOT_PORT_SLOTS = range(2, _SLOTS)
"""Presets use slot 1 of a host bridge."""


class NoPlace(ValueError):
    """A change does not fit the PCIe tree."""


def with_first_gpus(preset: Preset, count: int) -> Preset:
    """The node without the GPUs after the first ``count``, and without the bridges that led to them alone.

    A node that has not all GPUs of a board does not see its switches either: a virtual machine.
    """
    gone = {gpu.pci_address for gpu in preset.gpus[count:]} | (_switches(preset) if preset.gpus[count:] else set())
    return replace(preset, gpus=preset.gpus[:count], devices=_without(preset.devices, gone))


def _switches(preset: Preset) -> set[str]:
    return {device.address for device in preset.devices if device.role == "nvswitch"}


def without_adapters(preset: Preset) -> Preset:
    gone = {device.address for device in preset.devices if device.role == "nic"}
    return replace(preset, devices=_without(preset.devices, gone), interfaces=(), rdma_ports=())


def with_gpu_model(preset: Preset, gpu: Mapping[str, Any], nvlink: Mapping[str, Any]) -> Preset:
    """The node with other GPUs.

    Args:
        gpu: what differs in ``GpuModel``, by field.
        nvlink: what differs in ``NVLinkModel``, by field; ``links: 0`` takes NVLink away.
    """
    model = replace(preset.model, **gpu)
    gone: set[str] = set()
    if nvlink.get("links") == 0:
        model, gone = replace(model, nvlink=None), _switches(preset)
    elif model.nvlink is not None:
        model = replace(model, nvlink=replace(model.nvlink, **nvlink))
    devices = tuple(
        replace(device, generation=model.pcie_generation, width=model.pcie_width) if device.role == "gpu" else device
        for device in _without(preset.devices, gone)
    )
    return replace(preset, model=model, devices=devices)


def with_numa_nodes(preset: Preset, nodes: Sequence[int]) -> Preset:
    """The node with its GPUs, and all that hangs below the same root port, on other NUMA nodes.

    Raises:
        NoPlace: there is not one number for each GPU, or two GPUs below one root port get different ones.
    """
    if len(nodes) != len(preset.gpus):
        raise NoPlace(f"expected {len(preset.gpus)} numbers, one for each GPU, got {len(nodes)}")
    by_root: dict[str, int] = {}
    for gpu, node in zip(preset.gpus, nodes, strict=True):
        root = preset.root_port(gpu.pci_address)
        if by_root.setdefault(root, node) != node:
            raise NoPlace(f"GPU {gpu.pci_address} shares its root port {root} with one on another node")
    devices = tuple(
        replace(device, numa_node=by_root.get(preset.root_port(device.address), device.numa_node))
        for device in preset.devices
    )
    return replace(preset, devices=devices)


def place_adapter(preset: Preset, adapter: PciDevice, near_gpu: int | None) -> tuple[Preset, str]:
    """The node with another adapter, and its address.

    Args:
        adapter: the device; its address, parent and, beside a GPU, NUMA node are found here.
        near_gpu: place of the GPU below whose PCIe switch it goes; None: on a root port of its own.

    Raises:
        NoPlace: there is no such GPU, or no number is left.
    """
    if near_gpu is None:
        above, numa = f"pci0000:{_free_bus(preset, _FIRST_BUS):02x}", adapter.numa_node
        return _below_new_port(preset, adapter, above, numa, "root_port")
    if near_gpu >= len(preset.gpus):
        raise NoPlace(f"there is no GPU {near_gpu}; this node has {len(preset.gpus)}")
    gpu = preset.gpus[near_gpu].pci_address
    devices = {device.address: device for device in preset.devices}
    ancestors = preset.ancestors(gpu)
    switch = next((one for one in ancestors if one in devices and devices[one].role == "switch_upstream"), None)
    role = "root_port" if switch is None else "switch_downstream"
    return _below_new_port(preset, adapter, switch or ancestors[-1], devices[gpu].numa_node, role)


def _below_new_port(preset: Preset, adapter: PciDevice, above: str, numa: int, role: str) -> tuple[Preset, str]:
    siblings = {device.address for device in preset.devices if device.parent == above}
    if role == "root_port":
        bus, slots = int(above.rpartition(":")[2], 16), _ROOT_PORT_SLOTS
    else:
        # The ports below a switch share one bus, which the presets number after that of its upstream port.
        bus, slots = int(above.split(":")[1], 16) + 1, range(_SLOTS)
    addresses = (f"0000:{bus:02x}:{slot:02x}.0" for slot in slots)
    port_address = next((address for address in addresses if address not in siblings), None)
    if port_address is None:
        raise NoPlace(f"no slot is left below {above}")
    template = next((device for device in preset.devices if device.role == role), None)
    if template is None:
        template = next(device for device in preset.devices if device.role == "root_port")
    port = replace(template, address=port_address, parent=above, numa_node=numa, generation=max(template.generation, 1))
    with_port = with_devices(preset, (port,))
    address = f"0000:{_free_bus(with_port, bus + 1):02x}:00.0"
    device = replace(adapter, address=address, parent=port_address, numa_node=numa)
    return with_devices(with_port, (device,)), address


def with_devices(preset: Preset, devices: Iterable[PciDevice]) -> Preset:
    """The node with more PCIe devices; a parent comes before its children."""
    return replace(preset, devices=(*preset.devices, *devices))


def _free_bus(preset: Preset, first: int) -> int:
    used = {int(device.address.split(":")[1], 16) for device in preset.devices}
    used |= {int(device.parent.rpartition(":")[2], 16) for device in preset.devices if device.parent.startswith("pci")}
    numbers: list[int] = [*range(first, _BUSES), *range(_FIRST_BUS, first)]
    for bus in numbers:
        if bus not in used:
            return bus
    raise NoPlace("no PCIe bus number is left")


def _without(devices: Sequence[PciDevice], gone: set[str]) -> tuple[PciDevice, ...]:
    """The devices but these, and but the bridges that then have nothing below them."""
    left = [device for device in devices if device.address not in gone]
    while True:
        parents = {device.parent for device in left}
        pruned = [device for device in left if device.role not in _BRIDGES or device.address in parents]
        if len(pruned) == len(left):
            return tuple(left)
        left = pruned
