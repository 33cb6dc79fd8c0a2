"""What the readings themselves say is wrong: the signs that the node's page lists before its tables of parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Final

from commwatch_exporters.snapshot import Snapshot

_RECOVERY_ACTIONS: Final = {
    1: "GPU reset",
    2: "node reboot",
    3: "drain P2P",
    4: "drain and reset",
    5: "recover the IMEX domain",
    6: "bus reset",
    7: "system reboot",
}
_ANOMALIES: Final = {2: "blank", 3: "stale", 4: "saturated"}
_RIGHT_CONFIGURATION: Final = 1


@dataclass(frozen=True, slots=True)
class Sign:
    """Something wrong with a part."""

    part: str
    text: str


def signs(snapshot: Snapshot) -> list[Sign]:
    """The signs of a node: of now, and the events of its GPUs and switches so far."""
    return [
        *_recovery(snapshot),
        *_fabric(snapshot),
        *_services(snapshot),
        *_degraded(snapshot),
        *_anomalies(snapshot),
        *_events(snapshot),
    ]


def _gpu(labels: dict[str, str]) -> str:
    return f"GPU {labels['gpu']} ({labels['pci_bus_id']})"


def _recovery(snapshot: Snapshot) -> Iterator[Sign]:
    for labels, value in snapshot.samples("commwatch_gpu_recovery_action"):
        if value:
            action = _RECOVERY_ACTIONS.get(int(value), f"action {value}")
            yield Sign(_gpu(labels), f"the driver asks for: {action}")


def _fabric(snapshot: Snapshot) -> Iterator[Sign]:
    for labels, value in snapshot.samples("commwatch_fabric_fault"):
        if value:
            yield Sign(_gpu(labels), f"fabric: {labels['check'].replace('_', ' ')}")
    for labels, value in snapshot.samples("commwatch_fabric_incorrect_configuration"):
        if value != _RIGHT_CONFIGURATION:
            yield Sign(_gpu(labels), f"fabric: configured wrongly (code {value})")


def _services(snapshot: Snapshot) -> Iterator[Sign]:
    for labels, value in snapshot.samples("commwatch_service_running"):
        if not value:
            yield Sign(labels["service"], "does not run")


def _degraded(snapshot: Snapshot) -> Iterator[Sign]:
    for family in ("commwatch_pcie_link_degraded", "commwatch_pcie_device_link_degraded"):
        for labels, value in snapshot.samples(family):
            if value:
                part = _gpu(labels) if "gpu" in labels else f"{labels['role'].replace('_', ' ')} {labels['device']}"
                yield Sign(part, f"PCIe link below its best: {labels['aspect']}")


def _anomalies(snapshot: Snapshot) -> Iterator[Sign]:
    """One for each device and counter; the links of a GPU together."""
    found: Counter[tuple[str, str, float]] = Counter()
    for labels, value in snapshot.samples("commwatch_counter_anomaly"):
        whole = labels["device"].partition("/")[0] if labels["source"] == "nvml" else labels["device"]
        found[whole, labels["counter"], value] += 1
    for (device, counter, code), count in sorted(found.items()):
        times = f" on {count} links" if count > 1 else ""
        yield Sign(device, f"counter cannot be believed: {counter} is {_ANOMALIES.get(int(code), str(code))}{times}")


def _events(snapshot: Snapshot) -> Iterator[Sign]:
    latest = {
        labels["pci_bus_id"]: value for labels, value in snapshot.samples("commwatch_gpu_last_xid_timestamp_seconds")
    }
    codes: dict[tuple[str, str], list[str]] = {}
    for labels, value in snapshot.samples("commwatch_gpu_xid_events_total"):
        if value:
            codes.setdefault((_gpu(labels), labels["pci_bus_id"]), []).append(f"{labels['xid']} ({value:g} ×)")
    for (part, address), texts in codes.items():
        when = f", last {_moment(latest[address])}" if address in latest else ""
        yield Sign(part, f"Xid {', '.join(texts)}{when}")
    switches: dict[str, list[str]] = {}
    for labels, value in snapshot.samples("commwatch_nvswitch_sxid_events_total"):
        if value:
            switches.setdefault(labels["device"], []).append(f"{labels['sxid']} ({value:g} ×)")
    for device, texts in switches.items():
        yield Sign(f"NVSwitch {device}", f"SXid {', '.join(texts)}")


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
