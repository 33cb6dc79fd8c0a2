"""A healthy day of a node: all that happens to one without anything being broken, and when."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from commwatch_rehearsal.simulation.presets.parts import NVLINK_5, Preset

Minutes: TypeAlias = float
Act: TypeAlias = Literal["pause", "resume", "stop", "start", "clock", "miss"]

HARMLESS_XIDS = (13, 31, 43, 45)
"""Of programs that fail or are ended."""
_LANE_BITS_PER_SECOND = {1: 2.5e9, 2: 5e9, 3: 8e9, 4: 16e9, 5: 32e9, 6: 64e9}
"""Of a PCIe lane, by generation."""
_ALLOWED_BIT_ERROR_RATIO = 1e-12
_CRC_PER_SECOND = 50
"""Half of what is a fault."""
_EFFECTIVE_BIT_ERROR_RATIO = 5e-13
"""The same of NVLink 5, whose links have no CRC errors to count."""
_PAUSES_PER_SECOND = 1000
_MARKS_PER_SECOND = 500
_BURST_SECONDS = 90
"""Shorter than what counts as sustained."""
GENERATION_CHANGE_SECONDS = 10.0
"""Between two changes of the generation of an idle GPU's PCIe link."""


@dataclass(frozen=True)
class Step:
    """Something that is done to the daemon or its scrapes."""

    at: Minutes
    act: Act
    seconds: float = 0.0
    """Of a clock that is stepped: by how much; of scrapes that fail: for how long."""


@dataclass(frozen=True)
class Day:
    """When what happens, in minutes since the node booted first."""

    minutes: Minutes
    """Its length."""
    job: tuple[Minutes, Minutes]
    """The long job on all GPUs: begin and end."""
    short_jobs: tuple[tuple[Minutes, Minutes], ...]
    reboot: tuple[Minutes, Minutes, Minutes, Minutes]
    """Pause, the node goes down, the node comes up with one more GPU, resume."""
    driver_reload: tuple[Minutes, Minutes, Minutes]
    """Pause, the driver is unloaded for half a minute, resume."""
    restart: Minutes
    """Of the daemon alone."""
    xids: Minutes
    """The first of four, a minute apart."""
    counter_resets: tuple[Minutes, Minutes]
    """Of all GPUs, then of one; of the RDMA devices with each."""
    recovery: Minutes
    """Of one NVLink, once."""
    clock_steps: tuple[tuple[Minutes, float], ...]
    """With their seconds."""
    bursts: tuple[Minutes, ...]
    """Of ECN and PFC."""
    missed_scrapes: tuple[tuple[Minutes, float], ...]
    """With the seconds for which they fail."""

    def steps(self) -> Sequence[Step]:
        """What is done to the daemon and its scrapes, in the order of time."""
        pause, down, up, resume = self.reboot
        unload_pause, _, unload_resume = self.driver_reload
        steps = [
            Step(pause, "pause"), Step(down, "stop"), Step(up, "start"), Step(resume, "resume"),
            Step(unload_pause, "pause"), Step(unload_resume, "resume"),
            Step(self.restart, "stop"), Step(self.restart + 0.5, "start"),
            *(Step(at, "clock", seconds) for at, seconds in self.clock_steps),
            *(Step(at, "miss", seconds) for at, seconds in self.missed_scrapes),
        ]  # fmt: skip
        return sorted(steps, key=lambda step: step.at)

    def booted_at(self, at: Minutes) -> Minutes:
        """When the node that runs at a time booted."""
        return self.reboot[2] if at >= self.reboot[2] else 0.0


WHOLE_DAY = Day(
    minutes=24 * 60,
    job=(165, 165 + 20 * 60),
    short_jobs=((20, 30), (40, 44), (60, 75), (1375, 1378), (1390, 1410)),
    reboot=(80, 83, 88, 95),
    driver_reload=(110, 112, 120),
    restart=180,
    xids=240,
    counter_resets=(300, 330),
    recovery=360,
    clock_steps=((400, 3600), (430, -3600), (460, -240), (490, 240), (1380, 3)),
    bursts=(130, 200, 500, 620, 740, 860, 980, 1100, 1220, 1340, 1400),
    missed_scrapes=((10, 15), (52, 30), (150, 15), (350, 45), (600, 15), (800, 75), (1000, 15), (1395, 15)),
)
SHORT_DAY = Day(
    minutes=64,
    job=(28, 52),
    short_jobs=((11, 12.5), (56, 58)),
    reboot=(13, 14, 16, 17),
    driver_reload=(24, 25, 27),
    restart=30,
    xids=31,
    counter_resets=(35, 36),
    recovery=37,
    clock_steps=((41, 3600), (43, -3600)),
    bursts=(18, 38, 58),
    missed_scrapes=((10.5, 15), (46, 45), (59, 15)),
)
"""The same in an hour."""


def with_spare_port(preset: Preset) -> Preset:
    """The node with a second port on its first network adapter, without a cable, and with no spare port in a bond."""
    port = preset.interfaces[0]
    address = f"{port.pci_address[:-1]}7"
    card = next(device for device in preset.devices if device.address == port.pci_address)
    spare = replace(port, name=_spare_port(preset), pci_address=address, bond="")
    devices = (*preset.devices, replace(card, address=address))
    spare_rdma = [one.interface for one in preset.rdma_ports[-1:]]
    interfaces = [replace(one, bond="") if one.name in spare_rdma else one for one in preset.interfaces]
    return replace(preset, interfaces=(*interfaces, spare), devices=devices)


def _spare_port(preset: Preset) -> str:
    """Name of the interface without a cable."""
    return f"{preset.interfaces[0].name[:10]}u1"


def faults_of(preset: Preset, day: Day, booted_at: Minutes) -> str:
    """What the simulated node is told, as a file of faults.

    Args:
        preset: without the spare port.
        day: what happens when.
        booted_at: what the times in the file are since.
    """
    entries = [*_host(preset, day), *_gpus(preset, day, booted_at)]
    lines = []
    for kind, begin, end, more in entries:
        if end is not None and end <= booted_at:
            continue
        if kind in _EVENTS and begin < booted_at:
            continue
        entry: dict[str, Any] = {"fault": kind, "at": _seconds(max(0.0, begin - booted_at)), **more}
        if end is not None:
            entry["until"] = _seconds(end - booted_at)
        lines.append(f"- {json.dumps(entry)}\n")
    return "".join(lines)


_Entry: TypeAlias = tuple[str, Minutes, "Minutes | None", Mapping[str, Any]]
_EVENTS = frozenset({"xid", "counter_reset", "rdma_counter_reset", "nvlink_recovery"})
"""Kinds that happen once."""


def _seconds(minutes: Minutes) -> str:
    return f"{round(60 * minutes, 3):g}s"


def _host(preset: Preset, day: Day) -> list[_Entry]:
    cabled = preset.interfaces[0].name
    entries: list[_Entry] = [("ethernet_down", 0, None, {"interface": _spare_port(preset)})]
    burst = _BURST_SECONDS / 60
    pauses = {"interface": cabled, "rate": f"{_PAUSES_PER_SECOND}/s"}
    entries += [("ethernet_congestion", at, at + burst, pauses) for at in day.bursts]
    if not preset.rdma_ports:
        return entries
    cabled_ports, spare = _rdma_devices(preset)
    entries.append(("rdma_port_down", 0, None, {"device": spare}))
    for device in cabled_ports:
        rate = f"{_MARKS_PER_SECOND}/s"
        entries += [("rdma_congestion", at + 2, at + 2 + burst, {"device": device, "rate": rate}) for at in day.bursts]
        entries += [("rdma_counter_reset", at, None, {"device": device}) for at in day.counter_resets]
    return entries


def _rdma_devices(preset: Preset) -> tuple[list[str], str]:
    """Those with a cable, and the device without one: the last, which is no rail of a GPU."""
    spare = preset.rdma_ports[-1].device
    return [port.device for port in preset.rdma_ports if port.device != spare], spare


def _gpus(preset: Preset, day: Day, booted_at: Minutes) -> list[_Entry]:
    gpus = range(len(preset.gpus))
    entries: list[_Entry] = [
        ("job", *day.job, {"nvlink_utilization": 0.15}),
        *(("job", *times, {"gpu": place % len(gpus)}) for place, times in enumerate(day.short_jobs)),
        ("driver_reload", day.driver_reload[1], day.driver_reload[1] + 0.5, {}),
        ("counter_reset", day.counter_resets[0], None, {}),
        ("counter_reset", day.counter_resets[1], None, {"gpu": gpus[-1]}),
    ]
    entries += [
        ("xid", day.xids + place, day.xids + place + 0.5, {"gpu": place % len(gpus), "xid": xid})
        for place, xid in enumerate(HARMLESS_XIDS)
    ]
    lanes = preset.model.pcie_width
    replays = _ALLOWED_BIT_ERROR_RATIO * 60 * lanes * _LANE_BITS_PER_SECOND[preset.model.pcie_generation]
    for gpu in gpus:
        entries.append(("pcie_replay", 0, None, {"gpu": gpu, "rate": f"{replays:g}/min"}))
        rate = f"{1 / GENERATION_CHANGE_SECONDS:g}/s"
        entries.append(("pcie_errors", 0, None, {"gpu": gpu, "counter": "recoveries", "rate": rate}))
    if preset.model.nvlink is not None and preset.model.nvlink.remote != "none":
        link = {"gpu": 0, "link": 1}
        if preset.model.nvlink.version >= NVLINK_5:
            bit_errors = {"rate": "1/min", "effective": _EFFECTIVE_BIT_ERROR_RATIO}
            entries.append(("nvlink_bit_errors", 0, None, {**link, **bit_errors}))
        else:
            entries.append(("nvlink_crc", 0, None, {**link, "rate": f"{_CRC_PER_SECOND}/s"}))
        entries.append(("nvlink_recovery", day.recovery, day.recovery + 0.5, {"gpu": 0, "link": 0, "rate": "1/d"}))
    nvlink = preset.model.nvlink
    is_soldered = nvlink is not None and nvlink.remote == "switch"
    if len(gpus) > 1 and not is_soldered and booted_at < day.reboot[2]:
        # The card that is put in while the node is down; those after it get another number. GPUs at NVSwitches are on
        # one board with them: nobody puts one in, and one that lacks is a fault.
        entries.append(("gpu_missing", 0, None, {"gpu": 1}))
    return entries
