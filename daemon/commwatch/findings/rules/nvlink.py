"""NVLink: links that are down, never came up, carry less than their siblings, or are set to less."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set

import msgspec

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Match
from commwatch.findings.rules.components import gpu_of, nvlink_of
from commwatch.findings.rules.gpu_ways import by_nvlink
from commwatch.findings.rules.rule_set import FindingCode, Rule, RuleSet
from commwatch.node.down_links import FarEnds, grouped
from commwatch_exporters.node.model import C2cLink, Gpu, Inventory, NvLink
from commwatch_exporters.state_words import NVLINK_BANDWIDTH_MODES, NVLINK_STATES, NVLINK_UP, word_of

_DOWN = NVLINK_STATES.keys() - NVLINK_UP

_DIRECTIONS: Mapping[str, str] = {"transmit": "sent", "receive": "received"}
_BELOW_FOR = 600.0
"""Seconds: longer than a checkpoint or an evaluation step."""


def down(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Links that were active or that the node must have, and that are not active: one for each part they make up."""
    inactive = [(link, state) for link, state in facts.each(NvLink.state) if state in _DOWN]
    if not inactive:  # nearly always: of a whole node nothing else is looked at
        return
    expected = {(link.address, link.number): link for link, flag in facts.each(NvLink.expected) if flag == 1}
    states = {key: state for link, state in inactive if (key := (link.address, link.number)) in expected}
    if not states:
        return
    for fault in grouped(expected, states, ends_of(facts)):
        words = word_of(NVLINK_STATES, max(states[one] for one in fault.links))
        evidence: tuple[Evidence, ...] = (Evidence("link state", words),)
        link = expected[fault.links[0]]
        far = {by_nvlink(*one) for one in fault.links if one[0] != fault.place}
        if fault.kind == "link":
            ends = [f"; its other end is link {number} of {address}" for address, number in fault.links[1:]]
            component = _with_parts(link_at_switch(link, fault.switch), far)
            yield Match("nvlink_down", component, evidence, "".join((f"the link is {words}", *ends)))
            continue
        evidence += (Evidence("links that are down", len(fault.links)),)
        numbers = ", ".join(fault.numbers)
        if fault.kind == "gpu":
            of_gpu = [one for (address, _), one in expected.items() if address == fault.place]
            detail = f"{len(fault.numbers)} of {len(of_gpu)} links are {words}: {numbers}"
            if link.address != fault.place:
                detail = f"{len(fault.links)} links of other GPUs that lead to it are {words}"
            yield Match("nvlink_down", _with_parts(gpu_of(of_gpu[0].gpu), far), evidence, detail)
            continue
        detail = f"link{'s' if len(fault.numbers) > 1 else ''} {numbers} of all GPUs: {words}"
        parts = frozenset(address for address, _ in fault.links)
        yield Match("nvlink_down", of_all_gpus(fault.place, parts), evidence, detail)


def link_at_switch(link: NvLink, switch: str) -> Component:
    """An NVLink with the NVSwitch that it leads to; of an empty address the link alone."""
    return _with_parts(nvlink_of(link), {switch} - {""})


def _with_parts(component: Component, more: Set[str]) -> Component:
    """A part with the other ends of its links, which report the same fault."""
    return msgspec.structs.replace(component, parts=component.parts | more)


def of_all_gpus(switch: str, gpus: frozenset[str]) -> Component:
    """The NVSwitch, or the node where none is known."""
    return Component("nvswitch", switch, f"NVSwitch {switch}", gpus) if switch else Component("node", "", "", gpus)


def ends_of(facts: Facts) -> FarEnds:
    """The far ends of the links, as far as the driver reports them."""
    links = [link for link, _ in facts.each(NvLink.info) if link.remote_address]
    return FarEnds(
        {(one.address, one.number): one.remote_address for one in links if one.remote_type == "switch"},
        {
            (one.address, one.number): (one.remote_address, one.remote_number)
            for one in links
            if one.remote_type == "gpu"
        },
    )


def never_up(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """GPUs with links that are inactive and that no reading has shown active; nothing of what was before the first."""
    if (facts.node.part(Inventory, "nvlink").expected or 0) > sum(1 for _ in facts.each(NvLink.expected)):
        return  # which links should be active is not known
    dark = Counter(link.gpu for link, state in facts.each(NvLink.state) if state == 0 and link.expected != 1)
    for gpu, count in dark.items():
        yield Match("nvlink_never_up", gpu_of(gpu), (Evidence("links that have not been active", count),))


def reduced(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """GPUs whose links are set to less than their full bandwidth."""
    for gpu, mode in facts.each(Gpu.nvlink_bandwidth_mode):
        if mode:
            words = word_of(NVLINK_BANDWIDTH_MODES, mode)
            yield Match("nvlink_reduced", gpu_of(gpu), (Evidence("bandwidth mode", words),), words)


def c2c_down(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """GPUs with chip-to-chip links to the CPU that are not up."""
    dark: dict[Gpu, list[str]] = {}
    for link, flag in facts.each(C2cLink.up):
        if flag == 0:
            dark.setdefault(link.gpu, []).append(link.number)
    for gpu, links in dark.items():
        evidence = Evidence("chip-to-chip links that are not up", ", ".join(sorted(links)))
        yield Match("c2c_down", gpu_of(gpu), (evidence,))


def below_siblings(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """GPUs with a link that carries much less than those beside it, which lead to the same place and are in use."""
    slow: dict[Gpu, list[Evidence]] = {}
    for gpu, direction, typical in facts.each_keyed(Gpu.nvlink_sibling_bytes_per_second):
        if not _is_in_use(facts, thresholds, gpu, typical):
            continue
        rate = gpu.nvlink_slowest_link_bytes_per_second.get(direction)
        link = gpu.nvlink_slowest_link.get(direction)
        limit = typical * thresholds.nvlink_sibling_low_ratio
        if rate is not None and link is not None and rate < limit:
            what = f"{_DIRECTIONS[direction]} over link {link:g} in the last minute"
            evidence = Evidence(what, rate, "bytes_per_second", limit, "nvlink_sibling_low_ratio")
            slow.setdefault(gpu, []).append(evidence)
    for gpu, evidences in slow.items():
        yield Match("nvlink_below_siblings", gpu_of(gpu), tuple(evidences))


def _is_in_use(facts: Facts, thresholds: Thresholds, gpu: Gpu, typical: float) -> bool:
    """Whether the siblings carry enough of their capacity to compare a link with; False where that is not known."""
    capacity = facts.derived(capacity_per_link).get(gpu)
    return capacity is not None and typical > capacity * thresholds.nvlink_sibling_in_use_ratio


CAPACITY_PER_LINK = (NvLink.expected, Gpu.nvlink_capacity_bytes_per_second)
"""Metrics that ``capacity_per_link`` reads."""


def capacity_per_link(facts: Facts) -> dict[Gpu, float]:
    """Nominal rate of one link by GPU, bytes per second one way; for ``Facts.derived``."""
    links = Counter(link.gpu for link, flag in facts.each(NvLink.expected) if flag == 1)
    capacities = facts.each(Gpu.nvlink_capacity_bytes_per_second)
    return {gpu: capacity / links[gpu] for gpu, capacity in capacities if links[gpu]}


def _siblings_in_use(facts: Facts, thresholds: Thresholds, component: Component) -> bool:
    gpu = facts.node.part(Gpu, component.key)
    return any(_is_in_use(facts, thresholds, gpu, typical) for typical in gpu.nvlink_sibling_bytes_per_second.values())


NVLINK = RuleSet(
    name="NVLink",
    codes=(
        FindingCode(
            name="nvlink_down",
            title="NVLink is down",
            severity="critical",
            role="fault",
            quantities=("nvlinks",),
            meaning="A link that was active, or that the board has, is inactive. Jobs that use NVLink here fail, hang "
            "or run slower.",
            next_step="Drain the node; once it is free, run commwatch pause and reset the GPU; where links of all "
            "GPUs are down, all GPUs and NVSwitches together. Still down: call the vendor.",
            alert="CommwatchNvlinkDown",
        ),
        FindingCode(
            name="nvlink_never_up",
            title="GPU has NVLinks that were never seen up",
            severity="info",
            role="state",
            quantities=("nvlinks",),
            meaning="Inactive since first read: no bridge, no fabric, alone in a virtual machine, or down before.",
            next_step="Needed: compare bridges, fabric manager and partitions with an equal node; set "
            "inventory.expected.",
            opens_after=_BELOW_FOR,
        ),
        FindingCode(
            name="nvlink_reduced",
            title="NVLinks are set below full bandwidth",
            severity="warning",
            role="fault",
            meaning="The links of this GPU are set to a lower bandwidth to save power. Jobs that use NVLink here run "
            "slower.",
            next_step="Drain the node; once it is free, unless it was set on purpose, set it back (nvidia-smi nvlink "
            "-h names the option).",
            alert="CommwatchNvlinkReduced",
        ),
        FindingCode(
            name="nvlink_below_siblings",
            title="NVLink carries less than its siblings",
            severity="warning",
            role="symptom",
            meaning="For ten minutes a link has carried much less than others to the same peer. Uneven traffic can be "
            "the job itself; if it is the link, the job is slower.",
            next_step="Run nvidia-smi nvlink -e. If the link has errors, or the next job shows this too, drain the "
            "node; once it is free, run commwatch pause and reset the GPU. Again on the same link: call the vendor.",
            alert="CommwatchNvlinkBelowSiblings",
            opens_after=_BELOW_FOR,
        ),
        FindingCode(
            name="c2c_down",
            title="Chip-to-chip link is down",
            severity="warning",
            role="fault",
            meaning="A link between GPU and CPU is down. Jobs that copy between them run slower or fail.",
            next_step="Drain the node; once it is free, power cycle it. Again: call the vendor.",
            alert="CommwatchC2cDown",
        ),
    ),
    rules=(
        Rule(down, ("nvlink_down",), reads=(NvLink.state, NvLink.expected, NvLink.info)),
        Rule(never_up, ("nvlink_never_up",), reads=(NvLink.state, NvLink.expected, Inventory.expected)),
        Rule(reduced, ("nvlink_reduced",), reads=(Gpu.nvlink_bandwidth_mode,)),
        Rule(
            below_siblings,
            ("nvlink_below_siblings",),
            reads=(
                Gpu.nvlink_sibling_bytes_per_second,
                Gpu.nvlink_slowest_link_bytes_per_second,
                Gpu.nvlink_slowest_link,
                *CAPACITY_PER_LINK,
            ),
            thresholds=("nvlink_sibling_low_ratio", "nvlink_sibling_in_use_ratio"),
        ),
        Rule(c2c_down, ("c2c_down",), reads=(C2cLink.up,)),
    ),
    judged={"nvlink_below_siblings": _siblings_in_use},
)
