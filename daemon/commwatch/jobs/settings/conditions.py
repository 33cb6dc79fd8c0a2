"""The conditions that a row of ``data/nccl_variables.yaml`` may name, and the figures in its words.

A condition that needs an unknown fact about the node does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from commwatch.jobs.settings.facts import Level, RdmaPort
from commwatch.jobs.settings.process import View
from commwatch.jobs.settings.values import (
    AdapterList,
    NameList,
    beyond,
    chosen,
    level_reached,
    parse_adapters,
    parse_names,
)

_DIRECT: frozenset[Level] = frozenset({"NVL", "PIX", "PXB"})
"""The ways between GPUs that NCCL takes by itself on any processor."""
_NEAR: frozenset[Level] = frozenset({"PIX", "PXB"})
"""How far an adapter may be by default; from a Grace processor NCCL_NET_GDR_C2C decides."""
_UNSUITED = ("lo", "docker")
_MOST_SOCKETS = 64
_MOST_NAMES = 16
"""Adapters that are offered."""
_MOST_INTERFACES = 8
"""Interfaces that are offered."""


# --- between the GPUs of the node ---


def _used_ways(view: View) -> frozenset[Level]:
    """The direct ways between GPUs that NCCL would take if nothing were set.

    Source: ``ncclTopoCheckP2p`` in ``src/graph/paths.cc``: PXB, and all with two GPUs on AMD processors.
    """
    node = view.node
    everything = node.cpu_vendor == "amd" and node.gpus is not None and node.gpus <= 2
    return node.peer_levels if everything else node.peer_levels & _DIRECT


def _level(view: View, name: str) -> str:
    """The level that a setting allows; SYS, which is all of them, where it sets none."""
    return level_reached(view.text(name) or "") or "SYS"


def _lost_ways(view: View) -> frozenset[Level]:
    """The ways between GPUs that settings take away."""
    used = _used_ways(view)
    return used if view.number("NCCL_P2P_DISABLE") == 1 else beyond(used, _level(view, "NCCL_P2P_LEVEL"))


def _network_instead_of_shared_memory(view: View) -> bool:
    return bool(_lost_ways(view) or view.node.peers_refused or view.node.peer_levels - _used_ways(view))


# --- interfaces ---


def _interfaces(view: View) -> Mapping[str, bool | None] | None:
    """The interfaces of the process's network namespace; those of the node where that is its own."""
    if view.process.interfaces is not None:
        return dict.fromkeys(view.process.interfaces)
    return view.node.interfaces


def _interface_list(view: View) -> NameList | None:
    """The interfaces that the setting selects; None if it selects none, or if the present ones were not read."""
    wanted = parse_names(view.text("NCCL_SOCKET_IFNAME") or "")
    return wanted if wanted.names and _interfaces(view) is not None else None


def _used_interfaces(view: View) -> Mapping[str, bool | None]:
    wanted, have = _interface_list(view), _interfaces(view) or {}
    return {} if wanted is None else {one: up for one, up in have.items() if wanted.selects(one)}


def _named_interface_missing(view: View) -> bool:
    wanted, have = _interface_list(view), _interfaces(view) or {}
    return (
        wanted is not None
        and wanted.exact
        and not wanted.excludes
        and any(not any(wanted.fits(entry, one) for one in have) for entry in wanted.names)
    )


def _unsuited(view: View, *, only: bool) -> bool:
    """Whether interfaces are used that lead to no other node; a job on this node alone may use them."""
    used = _used_interfaces(view)
    some = any(one == "lo" or one.startswith("docker") for one in used)
    return some and not view.process.single_node and only == all(one.startswith(_UNSUITED) for one in used)


def _unsuited_not_excluded(view: View) -> bool:
    wanted = _interface_list(view)
    return wanted is not None and wanted.excludes and _unsuited(view, only=False)


# --- RDMA adapters ---


def _adapter_list(view: View) -> AdapterList | None:
    text = view.text("NCCL_IB_HCA")
    return None if text is None else parse_adapters(text)


def _no_adapter_here(view: View) -> bool:
    wanted = _adapter_list(view)
    return view.node.usable_ports == () and wanted is not None and not wanted.names.excludes


def _selected(view: View) -> tuple[AdapterList, list[RdmaPort]] | None:
    """The adapters that the setting selects and the matching ports, in any state; None if it selects none."""
    wanted, ports = _adapter_list(view), view.node.usable_ports
    if wanted is None or not wanted.names.names or not ports:
        return None
    return wanted, [one for one in ports if wanted.selects(one)]


def _no_port_fits(view: View) -> bool:
    selected = _selected(view)
    return selected is not None and not selected[1]


def _devices(view: View) -> list[str]:
    return sorted({one.device for one in view.node.usable_ports or ()})


def _named_adapter_missing(view: View) -> bool:
    selected = _selected(view)
    if selected is None or not selected[1]:
        return False
    names, devices = selected[0].names, _devices(view)
    return not names.excludes and any(not any(names.fits(one, it) for it in devices) for one in names.names)


def _name_fits_longer_ones(view: View) -> bool:
    selected = _selected(view)
    if selected is None or not selected[1]:
        return False
    names, devices = selected[0].names, _devices(view)
    unnamed = [one for one in devices if one not in names.names]
    return not names.exact and any(
        entry in devices and any(names.fits(entry, one) for one in unnamed) for entry in names.names
    )


def _only_inactive_ports_fit(view: View) -> bool:
    selected = _selected(view)
    return selected is not None and bool(selected[1]) and all(one.active is False for one in selected[1])


def _fastest(view: View) -> tuple[int, int]:
    """How many ports as fast as the fastest are not used, and how many there are.

    Slower ones may serve another purpose.
    """
    selected, active = _selected(view), [one for one in view.node.active_ports if not one.is_virtual]
    fastest = max((one.rate_gbit or 0.0 for one in active), default=0.0)
    rails = [one for one in active if fastest and one.rate_gbit == fastest]
    return (0 if selected is None else sum(not selected[0].selects(one) for one in rails)), len(rails)


def _some_fast_ports_unused(view: View) -> bool:
    unused, rails = _fastest(view)
    return 0 < unused < rails and not _no_port_fits(view) and not _only_inactive_ports_fit(view)


def _used_ports(view: View) -> list[RdmaPort]:
    """The active ports that the process uses."""
    wanted = _adapter_list(view)
    return [one for one in view.node.active_ports if wanted is None or wanted.selects(one)]


def _gid_missing(view: View) -> bool:
    index = view.number("NCCL_IB_GID_INDEX")
    ethernet = [one for one in _used_ports(view) if one.link_layer == "Ethernet"]
    return any(one.gids is not None and index not in one.gids for one in ethernet)


def _lost_adapters(view: View) -> frozenset[Level]:
    return beyond(view.node.nic_levels & _NEAR, _level(view, "NCCL_NET_GDR_LEVEL"))


def _too_many_sockets(view: View) -> bool:
    threads, sockets = view.number("NCCL_SOCKET_NTHREADS"), view.number("NCCL_NSOCKS_PERTHREAD")
    return threads is not None and sockets is not None and threads * sockets > _MOST_SOCKETS


# --- algorithms and GPUs ---


def _only_excludes(view: View, name: str) -> bool:
    text = view.text(name) or ""
    parts = [part.rpartition(":")[2] for part in text.split(";") if part]
    return bool(chosen(text)) and all(part.startswith("^") for part in parts)


def _mixed_gpus_by_index(view: View) -> bool:
    by_index = any(part.strip().isdecimal() for part in (view.text("CUDA_VISIBLE_DEVICES") or "").split(","))
    return (view.node.gpu_models or 0) > 1 and by_index and view.text("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"


CONDITIONS: Mapping[str, Callable[[View], bool]] = {
    "is_process": lambda view: view.process.pid is not None,
    "job_on_several_nodes": lambda view: view.process.single_node is False,
    # between the GPUs of the node
    "several_gpus": lambda view: view.node.gpus is None or view.node.gpus >= 2,
    "p2p_not_disabled": lambda view: view.number("NCCL_P2P_DISABLE") != 1,
    "p2p_level_is_loc": lambda view: _level(view, "NCCL_P2P_LEVEL") == "LOC",
    "p2p_level_not_loc": lambda view: _level(view, "NCCL_P2P_LEVEL") != "LOC",
    "direct_ways_lost": lambda view: bool(_lost_ways(view)),
    "peers_unknown": lambda view: view.node.peers_unknown,
    "network_instead_of_shared_memory": _network_instead_of_shared_memory,
    "nvls": lambda view: bool(view.node.nvls),
    "nvls_or_node_nvlink": lambda view: bool(view.node.nvls or view.node.node_nvlink),
    "node_nvlink": lambda view: bool(view.node.node_nvlink),
    "nvlink_between_gpus": lambda view: "NVL" in view.node.peer_levels,
    "nvlink_or_several_ports": lambda view: "NVL" in view.node.peer_levels or len(view.node.active_ports) > 1,
    # interfaces
    "no_interface_fits": lambda view: _interface_list(view) is not None and not _used_interfaces(view),
    "named_interface_missing": _named_interface_missing,
    "only_interfaces_down": lambda view: (
        bool(used := _used_interfaces(view)) and all(up is False for up in used.values())
    ),
    "only_unsuited_interfaces": lambda view: _unsuited(view, only=True),
    "unsuited_interfaces_not_excluded": _unsuited_not_excluded,
    # RDMA adapters
    "ports_active": lambda view: bool(view.node.active_ports),
    "rdma_disabled": lambda view: bool(view.number("NCCL_IB_DISABLE")),
    "several_ports_active": lambda view: len(view.node.active_ports) > 1,
    "no_adapter_here": _no_adapter_here,
    "no_port_fits": _no_port_fits,
    "named_adapter_missing": _named_adapter_missing,
    "name_fits_longer_ones": _name_fits_longer_ones,
    "only_inactive_ports_fit": _only_inactive_ports_fit,
    "some_fast_ports_unused": _some_fast_ports_unused,
    "ports_used": lambda view: bool(_used_ports(view)),
    "infiniband_used": lambda view: any(one.link_layer == "InfiniBand" for one in _used_ports(view)),
    "ethernet_used": lambda view: any(one.link_layer == "Ethernet" for one in _used_ports(view)),
    "gid_missing": _gid_missing,
    "gid_there": lambda view: not _gid_missing(view),
    "nccl_chooses_gid": lambda view: view.version_at_least(2, 21),
    "several_queue_pairs": lambda view: (view.number("NCCL_IB_QPS_PER_CONNECTION") or 1) > 1,
    "virtual_or_amd": lambda view: bool(view.node.virtual) or view.node.cpu_vendor == "amd",
    "dual_port_adapter": lambda view: bool(view.node.dual_port_adapter),
    "gpu_direct_possible": lambda view: bool(view.node.active_ports and view.node.gdr_possible),
    "gdr_level_is_loc": lambda view: _level(view, "NCCL_NET_GDR_LEVEL") == "LOC",
    "near_adapters_lost": lambda view: bool(_lost_adapters(view)),
    "peermem_missing": lambda view: view.node.peermem is False,
    "grace": lambda view: bool(view.node.grace),
    "too_many_sockets": _too_many_sockets,
    # algorithms, files and GPUs
    "algorithm_named": lambda view: bool(chosen(view.text("NCCL_ALGO") or "")),
    "algorithm_only_excluded": lambda view: _only_excludes(view, "NCCL_ALGO"),
    "protocol_named": lambda view: bool(chosen(view.text("NCCL_PROTO") or "")),
    "protocol_only_excluded": lambda view: _only_excludes(view, "NCCL_PROTO"),
    "ll128_named": lambda view: "ll128" in chosen(view.text("NCCL_PROTO") or ""),
    "topology_file_there": lambda view: "NCCL_TOPO_FILE" not in view.process.missing_files,
    "graph_file_there": lambda view: "NCCL_GRAPH_FILE" not in view.process.missing_files,
    "not_virtual": lambda view: view.node.virtual is False,
    "virtual_unknown": lambda view: view.node.virtual is None,
    "virtual_known": lambda view: view.node.virtual is not None,
    "plugin_named": lambda view: (view.text("NCCL_ENV_PLUGIN") or "").lower() != "none",
    "mixed_gpus_by_index": _mixed_gpus_by_index,
}
"""By name; a row holds where all that it names hold."""


def _active_ports(view: View) -> str:
    count = len(view.node.active_ports)
    return f"{count} RDMA port{'s' if count > 1 else ''} of this node {'are' if count > 1 else 'is'}"


def _suited_interfaces(view: View) -> str:
    have = _interfaces(view) or {}
    suited = sorted(one for one, up in have.items() if up is not False and not one.startswith(_UNSUITED))
    shown = suited[:_MOST_INTERFACES]
    return ", ".join(shown) + (" and others" if len(suited) > len(shown) else "") if shown else "none is up"


FIGURES: Mapping[str, Callable[[View], str]] = {
    "active_ports": _active_ports,
    "adapters": lambda view: ", ".join(_devices(view)[:_MOST_NAMES]),
    "fast_ports": lambda view: str(_fastest(view)[1]),
    "interfaces": _suited_interfaces,
    "lost_adapters": lambda view: ", ".join(sorted(_lost_adapters(view))),
    "lost_ways": lambda view: ", ".join(sorted(_lost_ways(view))),
    "unused_fast_ports": lambda view: str(_fastest(view)[0]),
    "way": lambda view: "NVLink" if "NVL" in _lost_ways(view) else "PCIe",
}
"""By name in braces, for words and next step. None has anything of a value."""
