"""Which RDMA adapters a job uses, and how it speaks through them."""

from __future__ import annotations

from dataclasses import dataclass

from commwatch.jobs.settings.facts import RdmaPort
from commwatch.jobs.settings.network import NameList, parse_names
from commwatch.jobs.settings.process import Said, View

_SHORTEST_TIMEOUT = 18
_LONG_TIMEOUT = 22
"""4.096 µs × 2^22 × 7 tries: two minutes until a dead path is noticed."""
_LONGEST_TIMEOUT = 31
"""From 32 on, and at 0, an adapter waits forever."""
_MANY_QUEUE_PAIRS = 8
_RETRIES = 7


@dataclass(frozen=True, slots=True)
class _Adapters:
    """A value of NCCL_IB_HCA: a list of adapters, each with a port or all of them."""

    names: NameList
    ports: tuple[int | None, ...]

    def selects(self, port: RdmaPort) -> bool:
        found = any(
            self.names.fits(entry, port.device) and number in (None, port.port)
            for entry, number in zip(self.names.names, self.ports, strict=True)
        )
        return found != self.names.excludes


def _parse(text: str) -> _Adapters:
    entries = parse_names(text)
    fields = [one.split(":") for one in entries.names]
    ports = tuple(int(one[1]) if len(one) > 1 and one[1].isdecimal() else None for one in fields)
    return _Adapters(NameList(entries.excludes, entries.exact, tuple(one[0] for one in fields)), ports)


def judge_adapters(view: View) -> Said:
    """What is said of RDMA adapters; nothing on a node that has none, or where they were not read."""
    ports = view.node.usable_ports
    if not ports:
        yield from _none_here(view, ports)
        return
    text = view.text("NCCL_IB_HCA")
    wanted = _parse(text) if text is not None else None
    if wanted is not None and wanted.names.names:
        yield from _chosen(view, wanted, ports)
    used = tuple(one for one in view.node.active_ports if wanted is None or wanted.selects(one))
    if used:
        yield from _addresses(view, used)
        yield from _patience(view)
        yield from _queues(view, used)


def _none_here(view: View, ports: tuple[RdmaPort, ...] | None) -> Said:
    text = view.text("NCCL_IB_HCA")
    if ports is not None and text is not None and not _parse(text).names.excludes:
        words = "This node has no RDMA adapter that NCCL can use."
        yield view.remark(
            "adapter_missing",
            "NCCL_IB_HCA",
            view.softened("suspicious"),
            words,
            "Take it out, or load the adapter's driver.",
        )


def _chosen(view: View, wanted: _Adapters, ports: tuple[RdmaPort, ...]) -> Said:
    name, names = "NCCL_IB_HCA", wanted.names
    devices = sorted({one.device for one in ports})
    used = [one for one in ports if wanted.selects(one)]
    absent = [entry for entry in names.names if not any(names.fits(entry, device) for device in devices)]
    choice = f"Adapters here: {', '.join(devices[:16])}."
    if not used:
        words = "No RDMA port of this node fits: NCCL falls back to TCP."
        yield view.remark("adapter_missing", name, view.elsewhere, words, choice)
        return
    if absent and not names.excludes:
        words = "Some of the adapters that it names are not on this node."
        yield view.remark("adapter_missing", name, view.softened("suspicious"), words, choice)
    broad = [entry for entry in names.names if not names.exact and entry in devices and _more(names, entry, devices)]
    if broad:
        words = "A name without = is a beginning: it fits adapters with longer names too, as mlx5_1 does mlx5_10."
        yield view.remark("adapter_prefix", name, view.elsewhere, words, "Write = in front of the list.")
    if not any(one.active or one.active is None for one in used):
        words = "No port that fits is active."
        yield view.remark("adapter_inactive", name, view.elsewhere, words, "Choose active ports, or bring these up.")
    else:
        yield from _left_out(view, wanted)


def _more(names: NameList, entry: str, devices: list[str]) -> bool:
    return any(device != entry and names.fits(entry, device) for device in devices)


def _left_out(view: View, wanted: _Adapters) -> Said:
    """Ports as fast as the fastest that are not used; slower ones may serve another purpose."""
    active = view.node.active_ports
    fastest = max((one.rate_gbit or 0.0 for one in active if not one.is_virtual), default=0.0)
    rails = [one for one in active if fastest and one.rate_gbit == fastest and not one.is_virtual]
    unused = [one for one in rails if not wanted.selects(one)]
    if unused and len(unused) < len(rails):
        words = f"{len(unused)} of the {len(rails)} fastest active ports are not used."
        yield view.remark("adapters_few", "NCCL_IB_HCA", view.softened("suspicious"), words,
                          "Name all of them, unless each rank is given its own.")  # fmt: skip


def _addresses(view: View, used: tuple[RdmaPort, ...]) -> Said:
    index = view.number("NCCL_IB_GID_INDEX")
    ethernet = [one for one in used if one.link_layer == "Ethernet"]
    if index is None or index < 0 or not ethernet:
        return
    name = "NCCL_IB_GID_INDEX"
    if any(one.gids is not None and index not in one.gids for one in ethernet):
        words = "The entry is empty on an active port: no connection can be made there."
        yield view.remark("gid_missing", name, view.elsewhere, words, "Take it out: NCCL 2.21 and newer choose it.")
    elif view.version_at_least(2, 21):
        words = "NCCL chooses the entry itself since 2.21; a fixed one breaks when the table changes."
        yield view.remark("gid_fixed", name, view.softened("suspicious"), words, "Take it out.")


def _patience(view: View) -> Said:
    timeout, retries = view.number("NCCL_IB_TIMEOUT"), view.number("NCCL_IB_RETRY_CNT")
    name = "NCCL_IB_TIMEOUT"
    if timeout is not None and (timeout <= 0 or timeout > _LONGEST_TIMEOUT):
        words = "The adapter waits forever: a dead path is never noticed."
        yield view.remark("rdma_timeout", name, view.softened("suspicious"), words, "Take it out.")
    elif timeout is not None and timeout < _SHORTEST_TIMEOUT:
        words = "Shorter than any default since 2.14: a busy network looks like a dead one."
        yield view.remark("rdma_timeout", name, view.softened("suspicious"), words, "Take it out.")
    elif timeout is not None and timeout >= _LONG_TIMEOUT:
        words = "A dead path is noticed after two minutes or more."
        yield view.remark("rdma_timeout", name, "note", words, "Take it out unless the network needs it.")
    if retries is not None and 0 <= retries < _RETRIES:
        words = "Fewer tries than the default: a busy network looks like a dead one."
        yield view.remark("rdma_retries", "NCCL_IB_RETRY_CNT", view.softened("suspicious"), words, "Take it out.")


def _queues(view: View, used: tuple[RdmaPort, ...]) -> Said:
    pairs = view.number("NCCL_IB_QPS_PER_CONNECTION") or 1
    if pairs > _MANY_QUEUE_PAIRS:
        words = "Many queue pairs cost memory and latency."
        yield view.remark("many_queue_pairs", "NCCL_IB_QPS_PER_CONNECTION", "note", words, "Measure with fewer.")
    if pairs > 1 and view.number("NCCL_IB_SPLIT_DATA_ON_QPS") == 1:
        words = "Small messages are split over all queue pairs too."
        yield view.remark("many_queue_pairs", "NCCL_IB_SPLIT_DATA_ON_QPS", "note", words, "Measure without.")
    if view.number("NCCL_IB_PCI_RELAXED_ORDERING") == 0 and (view.node.virtual or view.node.cpu_vendor == "amd"):
        words = "Strict ordering costs bandwidth in virtual machines and on AMD processors."
        yield view.remark(
            "ordering_strict", "NCCL_IB_PCI_RELAXED_ORDERING", view.softened("suspicious"), words, "Take it out."
        )
    if view.number("NCCL_IB_ADAPTIVE_ROUTING") == 0 and any(one.link_layer == "InfiniBand" for one in used):
        words = "On InfiniBand it is on by default."
        yield view.remark(
            "adaptive_routing_off",
            "NCCL_IB_ADAPTIVE_ROUTING",
            "note",
            words,
            "Take it out if the fabric routes adaptively.",
        )
    if view.node.dual_port_adapter and view.number("NCCL_IB_MERGE_NICS") == 0:
        words = "The two ports of an adapter are not used together."
        yield view.remark(
            "ports_not_merged", "NCCL_IB_MERGE_NICS", "note", words, "Take it out unless it was measured."
        )
