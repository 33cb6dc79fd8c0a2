"""The topology as a Graphviz graph: ``commwatch topology --dot | dot -Tsvg``."""

from __future__ import annotations

from collections.abc import Iterator

from commwatch.node.topology.model import End, PciDevice, Topology
from commwatch.node.topology.paths import narrowed, nvlinks_between, switch_links, uplink
from commwatch.sources.files import is_pci_address

_SHAPES = {"gpu": "box", "nic": "component", "nvswitch": "hexagon"}


def dot(topology: Topology) -> str:
    """A graph with a cluster for each NUMA node, PCIe links solid and NVLinks bold."""
    lines = ["graph topology {", "  rankdir=TB;", '  node [fontname="sans-serif", fontsize=10, shape=ellipse];']
    return "\n".join([*lines, *_node(topology), "}"]) + "\n"


def _node(node: Topology) -> Iterator[str]:
    clusters: dict[int | None, list[str]] = {}
    hosts: dict[str, int | None] = {}
    for device in node.devices.values():
        clusters.setdefault(device.numa_node, []).append(_vertex(node, device))
        if device.parent and not is_pci_address(device.parent):
            hosts.setdefault(device.parent, device.numa_node)
    for name, numa in hosts.items():
        clusters.setdefault(numa, []).append(f"{_name(name)} [label={_quoted(name)}, shape=house];")
    for numa, vertices in sorted(clusters.items(), key=lambda one: (one[0] is None, one[0] or 0)):
        title = "NUMA node not known" if numa is None else f"NUMA node {numa}"
        yield f"  subgraph {_quoted(f'cluster_n0:{numa}')} {{"
        yield f"    label={_quoted(title)};"
        yield from (f"    {vertex}" for vertex in vertices)
        yield "  }"
    for device in node.devices.values():
        if device.parent:
            yield f"  {_name(device.parent)} -- {_name(device.address)}{_edge(node, device)};"
    yield from _nvlinks(node)


def _vertex(node: Topology, device: PciDevice) -> str:
    parts: tuple[End, ...] = (*node.gpus, *node.nics)
    labels = [part.label for part in parts if part.address == device.address]
    text = "\n".join([*labels, device.role.replace("_", " "), device.address])
    shape = f", shape={_SHAPES[device.role]}" if device.role in _SHAPES else ""
    return f"{_name(device.address)} [label={_quoted(text)}{shape}];"


def _edge(node: Topology, device: PciDevice) -> str:
    link = uplink(node, device)
    if link is None or link.generation_max is None or link.lanes_max is None:
        return ""
    text = f"gen {link.generation_max} x{link.lanes_max}"
    if narrowed(device, link):
        return f" [label={_quoted(f'{text}, now gen {link.generation} x{link.lanes}')}, color=red]"
    return f" [label={_quoted(text)}]"


def _nvlinks(node: Topology) -> Iterator[str]:
    switched = {gpu.address: links for gpu in node.gpus if (links := switch_links(node, gpu))}
    if switched:
        yield f"  {_name('nvlink')} [label={_quoted('NVSwitch fabric')}, shape=hexagon];"
    for address, links in switched.items():
        yield f"  {_name('nvlink')} -- {_name(address)} [label={_quoted(f'NV{links}')}, style=bold];"
    for place, first in enumerate(node.gpus):
        for second in node.gpus[place + 1 :]:
            direct = first.address not in switched or second.address not in switched
            pair = nvlinks_between(node, first, second) if direct else None
            if pair:
                yield f"  {_name(first.address)} -- {_name(second.address)} [label={_quoted(f'NV{pair}')}, style=bold];"


def _name(part: str) -> str:
    return _quoted(f"n0:{part}")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
