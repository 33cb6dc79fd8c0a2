"""Stories of two and three faults at once on simulated nodes, drawn at random; knows nothing of rules and causes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from commwatch_rehearsal.drill.catalogue import load_drills
from commwatch_rehearsal.simulation.faults.kinds import KINDS
from commwatch_rehearsal.simulation.presets import find_preset
from commwatch_rehearsal.simulation.presets.parts import Preset
from support.simulated_daemon import BOOTED_AT

PRESETS = ("h100x8", "h100x8ndr", "b200x8", "a10x2", *("a100x4",) * 2, *("rtx3090x4",) * 2)
"""Those of four GPUs twice: a story of eight takes three times as long."""
PRESET_OF_PAIRS = "h100x8ndr"
KINDS_OF_PAIRS = (
    "xid", "sxid", "gpu_lost", "recovery_needed", "nvlink_down", "nvlink_recovery_failed", "fabric_unhealthy",
    "pcie_width", "pcie_aer", "slow_gpu",
)  # fmt: skip
"""Of GPUs and of the fabric between them: the signs of any two of them can come in the same seconds."""
FAMILIES = ("NVLink", "PCIe", "GPU", "Probes", "Network", "RDMA", "Host")
"""Of the drills. A driver that cannot be used hides all else."""
LEARNED_AT = 690.0
"""Seconds after the boot from which on faults begin: the daemon has learned the node by then."""
LAST_BEGIN = 1300.0
ENDS_AT = 2200.0
"""Seconds after the boot."""
_HIDES_ITS_PART = frozenset({"gpu_lost", "gpu_reset_required", "gpu_calls_fail", "driver_hang"})
"""What is read of a GPU no more cannot be told of it."""
_HIDES_PROBES = frozenset({"failing_probe", "probe_errors"})
_LEFT_OUT = {"gpu_missing", "gpu_not_started", "rank_crash", "driver_hang", "job"}
"""A reboot, which begins a story again, what takes ranks and readers in processes of their own, and a job, under which
nothing is probed."""


@dataclass(frozen=True)
class Injected:
    """One fault of a story."""

    entry: Mapping[str, str]
    """As a file of faults has it, with its times."""
    codes: frozenset[str]
    """Findings that name it, as the catalogue of drills says."""
    places: tuple[str, ...]
    """PCI addresses and names of the parts that it strikes; empty: no part of the node."""
    log: tuple[str, ...] = ()
    """What jobs write because of it."""

    @property
    def words(self) -> str:
        """``nvlink_down gpu 1 link 2 at 300s``."""
        return " ".join(
            part for key, value in self.entry.items() for part in (() if key == "fault" else (key,)) + (value,)
        )


@dataclass(frozen=True)
class Story:
    """A node with several faults."""

    number: int
    preset: str
    faults: tuple[Injected, ...]

    def file(self, only: Injected | None = None) -> str:
        """The faults as a file, or one of them alone."""
        return "".join(
            "- {" + ", ".join(f"{key}: {value}" for key, value in one.entry.items()) + "}\n"
            for one in self.faults
            if (only is None or one is only) and one.entry["fault"] in KINDS
        )

    def log(self, only: Injected | None = None) -> str:
        """What the jobs write, in the order of time."""
        return "".join(sorted(line for one in self.faults if only is None or one is only for line in one.log))


@dataclass(frozen=True)
class _Template:
    entry: Mapping[str, str]
    codes: frozenset[str]


def _templates() -> Mapping[str, list[_Template]]:
    """By kind of fault: what the drills inject alone, and say the codes of."""
    codes: dict[str, set[str]] = {}
    drills = [
        drill
        for drill in load_drills().values()
        if drill.family in FAMILIES and drill.codes and len(drill.faults) == 1 and not drill.under
    ]
    for drill in drills:
        codes.setdefault(_key(drill.faults[0]), set()).update(drill.codes)
    found: dict[str, list[_Template]] = {}
    for drill in drills:
        [entry] = drill.faults
        if entry["fault"] not in _LEFT_OUT:
            found.setdefault(entry["fault"], []).append(_Template(entry, frozenset(codes[_key(entry)])))
    return found


def _key(entry: Mapping[str, str]) -> str:
    return " ".join(
        entry[key] for key in ("fault", "counter", "check", "severity", "reason", "xid", "for") if key in entry
    )


def stories(count: int, seed: int) -> Iterator[Story]:
    """So many stories; the same seed gives the same ones."""
    drawn = random.Random(seed)  # noqa: S311 - stories, no secrets
    templates = _templates()
    for number in range(count):
        while (story := _story(drawn, templates, number)) is None:
            pass
        yield story


def unrelated(seed: int, count: int) -> Story:
    """Faults of different parts of a node, seconds apart; the same seed gives the same ones."""
    drawn = random.Random(seed)  # noqa: S311 - stories, no secrets
    templates, preset = _templates(), find_preset(PRESET_OF_PAIRS)
    faults: list[Injected] = []
    begin = drawn.uniform(LEARNED_AT, LEARNED_AT + 30.0)
    while len(faults) < count:
        template = drawn.choice(templates[drawn.choice(KINDS_OF_PAIRS)])
        fault = _injected(drawn, template, preset, (begin, begin))
        if fault is not None and all(_are_unrelated(fault, other) for other in faults):
            faults.append(fault)
            begin += drawn.choice((0.0, drawn.uniform(1.0, 30.0), drawn.uniform(30.0, 60.0)))
    drawn.shuffle(faults)
    return Story(seed, preset.name, tuple(faults))


def _are_unrelated(one: Injected, other: Injected) -> bool:
    """Whether they strike different parts, and at most one the probes themselves."""
    if not set(one.places).isdisjoint(other.places):
        return False
    probed = [fault.entry["fault"] in KINDS_OF_PROBES for fault in (one, other)]
    return not all(probed) and _can_stand_beside(one, other)


def _story(drawn: random.Random, templates: Mapping[str, Sequence[_Template]], number: int) -> Story | None:
    name = drawn.choice(PRESETS)
    preset = find_preset(name)
    faults: list[Injected] = []
    wanted = drawn.choice((2, 2, 3))
    for _ in range(100):
        if len(faults) == wanted:
            break
        if drawn.random() < 0.1:
            fault = _stalled_program(drawn, preset)
        else:
            fault = _injected(drawn, drawn.choice(templates[drawn.choice(tuple(templates))]), preset)
        if fault is not None and all(_can_stand_beside(fault, other) for other in faults):
            faults.append(fault)
    return Story(number, name, tuple(faults)) if len(faults) == wanted else None


def _can_stand_beside(one: Injected, other: Injected) -> bool:
    """Whether neither hides the other, nor is it the same again."""
    kinds = {one.entry["fault"], other.entry["fault"]}
    if len(kinds) == 1:
        return False
    if kinds & _HIDES_PROBES and all(KINDS_OF_PROBES & {kind} for kind in kinds):
        return False
    if kinds & _HIDES_ITS_PART:
        # A GPU that is gone ends all probes, and is at the end of links of others.
        return not kinds & KINDS_OF_PROBES and not (set(one.places) & set(other.places))
    return True


KINDS_OF_PROBES = frozenset({"slow_probe", "failing_probe", "probe_errors", "slow_pair", "slow_gpu"})


def _injected(
    drawn: random.Random,
    template: _Template,
    preset: Preset,
    begins: tuple[float, float] = (LEARNED_AT, LAST_BEGIN),
) -> Injected | None:
    """A fault somewhere on the node; None where the node has no such part.

    Args:
        drawn: draws the place and the times.
        template: the fault.
        preset: the node.
        begins: the first and the last second after the boot at which it may begin.
    """
    entry, places = dict(template.entry), []
    kind = entry["fault"]
    if not _can_strike(kind, preset):
        return None
    for key in [key for key in _PLACED_BY if key in entry]:
        if (place := _PLACED_BY[key](drawn, entry, preset)) is None:
            return None
        places += place
    begin = drawn.uniform(*begins)
    entry["at"] = f"{begin:.0f}s"
    if "for" not in entry:
        lasts = drawn.uniform(840.0, 1200.0) if kind in KINDS_OF_PROBES else drawn.uniform(240.0, 1200.0)
        entry["for"] = f"{lasts:.0f}s"
    return Injected(entry, template.codes, tuple(places), _log_of(drawn, kind, entry, preset, begin))


def _can_strike(kind: str, preset: Preset) -> bool:
    """Whether the node has what this kind of fault is of."""
    nvlink = preset.model.nvlink
    if KINDS[kind].preset == "b200x8":
        return preset.name == "b200x8"
    if kind.startswith(("fabric", "p2p", "service")):
        return bool(preset.nvswitches)
    if kind in ("slow_gpu", "slow_pair"):
        return len(preset.gpus) > 2  # of two GPUs neither is slower than the other, and there is one pair
    return not kind.startswith("nvlink") or (nvlink is not None and nvlink.remote != "none")


def _gpu(drawn: random.Random, entry: dict[str, str], preset: Preset) -> list[str] | None:
    """A GPU with its link, or two GPUs."""
    gpu, *others = drawn.sample(range(len(preset.gpus)), 2)
    struck = [gpu, *others] if "peer" in entry else [gpu]
    entry.update(zip(("gpu", "peer"), map(str, struck), strict=False))
    nvlink = preset.model.nvlink
    if "link" in entry and nvlink is not None:
        link = drawn.randrange(nvlink.links)
        entry["link"] = str(link)
        if nvlink.remote != "switch" and preset.peer(gpu, link) is None:
            return None
    return [preset.gpus[one].pci_address for one in struck]


def _switch(drawn: random.Random, entry: dict[str, str], preset: Preset) -> list[str] | None:
    if not preset.nvswitches:
        return None
    switch = drawn.randrange(len(preset.nvswitches))
    entry.update(nvswitch=str(switch), link=str(drawn.randrange(64)))
    return [preset.nvswitches[switch]]


def _card(key: str) -> _Place:
    def place(drawn: random.Random, entry: dict[str, str], preset: Preset) -> list[str] | None:
        if not preset.interfaces:
            return None
        card = drawn.choice(preset.interfaces)
        entry[key] = card.name
        return [card.name, card.pci_address]

    return place


def _device(drawn: random.Random, entry: dict[str, str], preset: Preset) -> list[str] | None:
    """A port of the same link layer: not every counter is on both."""
    ports = [one for one in preset.rdma_ports if one.link_layer == _layer(entry["device"])]
    if not ports:
        return None
    entry["device"] = drawn.choice(ports).device
    return [entry["device"]]


_Place: TypeAlias = Callable[[random.Random, dict[str, str], Preset], "list[str] | None"]
"""Draws a place, writes it into the entry, and says its addresses and names; None where the node has none."""
_PLACED_BY: Mapping[str, _Place] = {
    "gpu": _gpu, "nvswitch": _switch, "interface": _card("interface"), "nic": _card("nic"), "device": _device,
}  # fmt: skip
"""By the key of an entry."""


def _layer(device: str) -> str:
    return next(port.link_layer for port in find_preset("h100x8ndr").rdma_ports if port.device == device)


# --- what jobs write ---


def _stamp(at: float, form: str) -> str:
    return time.strftime(form, time.gmtime(BOOTED_AT + at))


def _watchdog(at: float, ranks: Sequence[int]) -> Iterator[str]:
    """What torch writes on each rank that waits."""
    for place, rank in enumerate(ranks):
        stamp = _stamp(at + place, "E101 %H:%M:%S")
        yield (
            f"[rank{rank}]:[{stamp}.041992154 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective "
            "operation timeout: WorkNCCL(SeqNum=2451, OpType=ALLREDUCE, NumelIn=33554432, NumelOut=33554432, "
            "Timeout(ms)=120000) ran for 120021 milliseconds before timing out.\n"
        )


def _retries(at: float, device: str) -> Iterator[str]:
    """What NCCL writes when a peer does not answer over an RDMA device."""
    for place in range(6):
        yield (
            f"[{_stamp(at + place, '%Y-%m-%d %H:%M:%S')}] node1:40103:404{place}1 [3] transport/net_ib/p2p.cc:315 NCCL "
            f"WARN NET/IB: Got completion from peer 10.2.0.5<33092> with status=12 opcode=0 len=0 vendor err 129 "
            f"(Send) localGid fe80::a288:c203:8b:df03 remoteGids fe80::a288:c203:8b:de03 hca {device}\n"
        )


def _log_of(drawn: random.Random, kind: str, entry: Mapping[str, str], preset: Preset, begin: float) -> tuple[str, ...]:
    """In half of the stories a job runs there and falls over the fault."""
    if drawn.random() < 0.5:
        return ()
    if kind in ("rdma_port_down", "rdma_errors") and entry.get("counter", "symbol_error") != "port_xmit_discards":
        return tuple(_retries(begin + drawn.uniform(5.0, 40.0), entry["device"]))
    if kind in ("nvlink_down", "gpu_lost", "gpu_reset_required", "nvlink_recovery_failed") and len(preset.gpus) > 2:
        others = [rank for rank in range(len(preset.gpus)) if str(rank) != entry["gpu"]]
        return tuple(_watchdog(begin + drawn.uniform(100.0, 140.0), others))
    return ()


def _stalled_program(drawn: random.Random, preset: Preset) -> Injected | None:
    """A job in which one rank waits for something else, through no fault of the node."""
    if len(preset.gpus) < 3:
        return None
    begin = drawn.uniform(LEARNED_AT, LAST_BEGIN)
    silent = drawn.randrange(len(preset.gpus))
    ranks = [rank for rank in range(len(preset.gpus)) if rank != silent]
    entry = {"fault": "stalled_program", "at": f"{begin:.0f}s"}
    return Injected(entry, frozenset({"nccl_timeouts"}), (), tuple(_watchdog(begin, ranks)))
