"""Settings that keep traffic between nodes from the best way: interfaces, RDMA on or off, GPUDirect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from commwatch.jobs.settings.facts import Level
from commwatch.jobs.settings.process import Said, View
from commwatch.jobs.settings.records import SettingSeverity
from commwatch.jobs.settings.values import level_reached, within

_NEAR: frozenset[Level] = frozenset({"PIX", "PXB"})
"""How far an adapter may be by default; from a Grace processor NCCL_NET_GDR_C2C decides."""
_UNSUITED = ("lo", "docker")
_MOST_SOCKETS = 64


@dataclass(frozen=True, slots=True)
class NameList:
    """A list of names as NCCL_SOCKET_IFNAME and NCCL_IB_HCA have it: ``^=eth0,eth1``."""

    excludes: bool
    exact: bool
    names: tuple[str, ...]

    def fits(self, entry: str, name: str) -> bool:
        """Whether an entry means a name."""
        return name == entry if self.exact else name.startswith(entry)

    def selects(self, name: str) -> bool:
        """Whether a name is used."""
        return any(self.fits(entry, name) for entry in self.names) != self.excludes


def parse_names(text: str) -> NameList:
    """Read a list; ``^`` and ``=`` count at its beginning only and hold for all entries."""
    excludes = text.startswith("^")
    rest = text.removeprefix("^")
    return NameList(excludes, rest.startswith("="), tuple(one for one in rest.removeprefix("=").split(",") if one))


def judge_network(view: View) -> Said:
    """Interfaces, RDMA and what leads to it."""
    yield from _interfaces(view)
    yield from _rdma(view)
    yield from _gpu_direct(view)
    yield from _sockets(view)


# --- interfaces ---


def _interfaces(view: View) -> Said:
    text, have = view.text("NCCL_SOCKET_IFNAME"), _visible(view)
    if text is None or have is None:
        return
    wanted = parse_names(text)
    if not wanted.names:
        return
    name = "NCCL_SOCKET_IFNAME"
    used = {one: up for one, up in have.items() if wanted.selects(one)}
    absent = [entry for entry in wanted.names if not any(wanted.fits(entry, one) for one in have)]
    if not used:
        words = "No interface of this node fits: NCCL does not start."
        yield view.remark("interface_missing", name, "harmful", words, f"Choose from: {_list(have)}.")
    elif wanted.exact and not wanted.excludes and absent:
        words = "Some of the interfaces that it names are not on this node."
        yield view.remark("interface_missing", name, "suspicious", words, f"Choose from: {_list(have)}.")
    if used and all(up is False for up in used.values()):
        words = "All interfaces that fit are down."
        yield view.remark("interface_down", name, "harmful", words, "Choose one that is up.")
    yield from _unsuited(view, wanted, used)


def _unsuited(view: View, wanted: NameList, used: Mapping[str, bool | None]) -> Said:
    """Interfaces that lead to no other node; a job on this node alone may use them."""
    if view.process.single_node or not any(one == "lo" or one.startswith("docker") for one in used):
        return
    name = "NCCL_SOCKET_IFNAME"
    if all(one.startswith(_UNSUITED) for one in used):
        severity: SettingSeverity = "suspicious" if view.process.single_node is None else "harmful"
        words, step = "Only interfaces that lead to no other node fit.", "Choose the one that leads to the other nodes."
        yield view.remark("interface_unsuited", name, severity, words, step)
    elif wanted.excludes:
        words = "The list leaves in lo or docker, which NCCL passes over only while nothing is set."
        yield view.remark("interface_unsuited", name, "suspicious", words, "Exclude lo and docker as well.")


def _visible(view: View) -> Mapping[str, bool | None] | None:
    """The interfaces of the process's network namespace; those of the node where that is its own."""
    if view.process.interfaces is not None:
        return dict.fromkeys(view.process.interfaces)
    return view.node.interfaces


def _list(names: Mapping[str, bool | None]) -> str:
    suited = sorted(one for one, up in names.items() if up is not False and not one.startswith(_UNSUITED))
    shown = suited[:8]
    return ", ".join(shown) + (" and others" if len(suited) > len(shown) else "") if shown else "none is up"


# --- RDMA ---


def _rdma(view: View) -> Said:
    active = view.node.active_ports
    if not active:
        return
    count = f"{len(active)} RDMA port{'s' if len(active) > 1 else ''} of this node {'are' if len(active) > 1 else 'is'}"
    off = view.number("NCCL_IB_DISABLE")
    if off:
        words = f"RDMA is off although {count} active: traffic between nodes goes over TCP."
        yield view.remark("rdma_off", "NCCL_IB_DISABLE", view.elsewhere, words, "Take it out.")
    if (view.text("NCCL_NET") or "").lower() == "socket":
        words = f"TCP is forced although {count} active."
        yield view.remark("rdma_off", "NCCL_NET", view.elsewhere, words, "Take it out.")
    if view.number("NCCL_PXN_DISABLE") == 1 and "NVL" in view.node.peer_levels and len(active) > 1:
        words = "A GPU may not use another GPU's adapter over NVLink: rails are crossed in the network instead."
        yield view.remark("pxn_off", "NCCL_PXN_DISABLE", view.softened("suspicious"), words, "Take it out.")
    if view.number("NCCL_CROSS_NIC") in (0, 1) and len(active) > 1:
        words = "0 is right only where each rail has a switch of its own, 1 only where all adapters are on one switch."
        yield view.remark("cross_nic", "NCCL_CROSS_NIC", "note", words, "Leave it at 2 unless it was measured.")


# --- GPUDirect ---


def _gpu_direct(view: View) -> Said:
    node = view.node
    if not node.active_ports:
        return
    if node.gdr_possible:
        yield from _gdr_level(view)
        if "NVL" in node.peer_levels and view.number("NCCL_NET_GDR_READ") == 0:
            words = "What is sent goes through host memory first, although adapters can read GPU memory."
            yield view.remark("gdr_off", "NCCL_NET_GDR_READ", view.softened("suspicious"), words, "Take it out.")
    if node.peermem is False and view.number("NCCL_DMABUF_ENABLE") == 0:
        words = "dma-buf is off and nvidia_peermem is not loaded: adapters cannot reach GPU memory."
        yield view.remark("gdr_off", "NCCL_DMABUF_ENABLE", view.softened("suspicious"), words,
                          "Take it out, or load nvidia_peermem.")  # fmt: skip
    if node.grace and view.number("NCCL_NET_GDR_C2C") == 0:
        words = "Adapters at the Grace processors may not reach GPU memory."
        yield view.remark("gdr_off", "NCCL_NET_GDR_C2C", view.softened("suspicious"), words, "Take it out.")


def _gdr_level(view: View) -> Said:
    reached = level_reached(view.text("NCCL_NET_GDR_LEVEL") or "")
    if reached is None:
        return
    lost = sorted(level for level in view.node.nic_levels & _NEAR if not within(level, reached))
    name = "NCCL_NET_GDR_LEVEL"
    if reached == "LOC":
        words = "Adapters may not reach GPU memory, although they can: all goes through host memory."
        yield view.remark("gdr_off", name, view.elsewhere, words, "Take it out.")
    elif lost:
        words = f"The level leaves out adapters that reach GPU memory without the CPU ({', '.join(lost)})."
        yield view.remark("gdr_off", name, view.elsewhere, words, "Take it out: NCCL chooses the level itself.")


def _sockets(view: View) -> Said:
    threads, sockets = view.number("NCCL_SOCKET_NTHREADS"), view.number("NCCL_NSOCKS_PERTHREAD")
    if threads is not None and sockets is not None and threads * sockets > _MOST_SOCKETS:
        words = f"Threads times sockets is more than {_MOST_SOCKETS}: NCCL takes fewer sockets and warns."
        yield view.remark("socket_threads", "NCCL_NSOCKS_PERTHREAD", "suspicious", words, "Lower one of the two.")
