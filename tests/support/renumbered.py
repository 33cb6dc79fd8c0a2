"""Plays the faults of a node, and the same on the node in other PCI domains: all that is found is the same.

The GPUs keep the driver's order, so that the times of probes and all counts are the same to the last digit, while the
order of the PCI addresses is turned round. Nothing here knows rules or causes.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from commwatch_rehearsal.simulation.presets import find_preset
from commwatch_rehearsal.simulation.presets.parts import Preset
from support.fault_stories import ENDS_AT, LEARNED_AT, Injected, Story
from support.simulated_daemon import simulated

CHOSEN = {
    "a lost GPU, whose links are read at its peers alone": (
        "a100x4",
        ({"fault": "gpu_lost", "gpu": "0", "at": "720s"},),
    ),
    "two GPUs that reach none of the others": (
        "h100x8ndr",
        ({"fault": "p2p_broken", "gpu": "1", "at": "720s"}, {"fault": "p2p_broken", "gpu": "6", "at": "720s"}),
    ),
}
"""Preset and faults of which something was found otherwise under other addresses, before that was corrected."""
BUILT_ON, KEPT_ASIDE = 4_000_001, 4_000_002
"""Seeds of the half of the stories that was looked at while the code was corrected, and of the half that was kept
aside."""

_LEARNING_STEP, _STEP, _PROBED_EACH = 230.0, 60.0, 180.0
_DOMAIN = re.compile(r"(?<![0-9a-f])[0-9a-f]{4}(?=:[0-9a-f]{2}(:[0-9a-f]{2}\.[0-7])?\b)")

Facts = Mapping[str, Any]
"""Of a finding: all that its document has, by name."""


def chosen(name: str) -> Story:
    """One of ``CHOSEN``."""
    preset, entries = CHOSEN[name]
    return Story(0, preset, tuple(Injected(one, frozenset(), ()) for one in entries))


def in_other_domains(preset: Preset) -> Preset:
    """The node with a PCI domain for each of its host bridges, those with the highest addresses first."""
    bridges = sorted({preset.ancestors(one.address)[-1] for one in preset.devices}, reverse=True)
    domains = {bridge: f"{place + 1:04x}" for place, bridge in enumerate(bridges)}
    moved = {
        one.address: _DOMAIN.sub(domains[preset.ancestors(one.address)[-1]], one.address) for one in preset.devices
    } | {bridge: _DOMAIN.sub(domain, bridge) for bridge, domain in domains.items()}
    return replace(
        preset,
        gpus=tuple(replace(one, pci_address=moved[one.pci_address]) for one in preset.gpus),
        devices=tuple(replace(one, address=moved[one.address], parent=moved[one.parent]) for one in preset.devices),
        interfaces=tuple(replace(one, pci_address=moved[one.pci_address]) for one in preset.interfaces),
        rdma_ports=tuple(replace(one, pci_address=moved[one.pci_address]) for one in preset.rdma_ports),
        nvswitches=tuple(moved[one] for one in preset.nvswitches),
    )


def differences(story: Story) -> list[str]:
    """Findings that are others under other addresses, each part of their documents once; for people."""
    preset = find_preset(story.preset)
    looks = zip(_looks(story, preset), _looks(story, in_other_domains(preset)), strict=True)
    found: dict[str, str] = {}
    for (seconds, first), (_, other) in looks:
        for key in sorted(first.keys() | other.keys()):
            here, there = first.get(key, {}), other.get(key, {})
            for name in sorted(here.keys() | there.keys()):
                if here.get(name) != there.get(name):
                    words = f"{key}, {name}, {seconds:.0f} s after the boot: {here.get(name)!r}, {there.get(name)!r}"
                    found.setdefault(f"{key} {name}", words)
    return list(found.values())


def _looks(story: Story, preset: Preset) -> Sequence[tuple[float, Mapping[str, Facts]]]:
    """Seconds since the boot of each look, with the findings by code and part."""
    looks = []
    with (
        tempfile.TemporaryDirectory() as folder,
        simulated(preset, Path(folder), faults=story.file() or "[]") as daemon,
    ):
        while daemon.time < LEARNED_AT:
            daemon.step_to(daemon.time + _LEARNING_STEP)
        while daemon.time < ENDS_AT:
            daemon.step_to(daemon.time + _STEP)
            if (daemon.time - LEARNED_AT) % _PROBED_EACH == 0 and daemon.is_free:
                daemon.probe()
            findings = daemon.findings()["findings"]
            looks.append((daemon.time, {_key(one): _facts(one) for one in findings}))
    return looks


def _key(record: Facts) -> str:
    """Code and part: of a link that joins two GPUs both ends, of a pair both GPUs, in an order of their own."""
    component = record["component"]
    address, _, link = component["key"].partition("/")
    ends = [component["key"]]
    if component["kind"] == "pair":
        ends = component["key"].split("-")
    elif component["kind"] == "nvlink":
        ends = [f"{address}/nvlink/{link}", *(part for part in component["parts"] if "/nvlink/" in part)]
    return f"{record['code']} {component['kind']} {' '.join(sorted(_plain(ends)))}"


def _facts(finding: Facts) -> Facts:
    """All but names and what of several that are alike comes first: both follow the addresses."""
    causes = {kind: {_key(one): _by_itself(one) for one in finding[kind]} for kind in ("causes", "also_seen")}
    return {**_by_itself(finding), **causes}


def _by_itself(record: Facts) -> Facts:
    """A finding or cause by itself; a link that is down is named by one of its ends, and in words by the other.

    Suspects of the pair matrix are searched in a thread, whose end decides by a second when they are seen.
    """
    component = record["component"]
    left_out = {"component", "causes", "also_seen", "since", "last_seen", "seen_seconds"}
    left_out |= {"detail"} if component["kind"] == "nvlink" else set()
    facts: Facts = _plain({name: value for name, value in record.items() if name not in left_out})
    return facts if component["kind"] == "nvlink" else {**facts, "parts": sorted(_plain(component["parts"]))}


def _plain(value: Any) -> Any:
    """With all addresses in domain 0."""
    if isinstance(value, str):
        return _DOMAIN.sub("0000", value)
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return {name: _plain(one) for name, one in value.items()} if isinstance(value, dict) else value
