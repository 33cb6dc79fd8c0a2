"""The Xids and SXids that the driver and the kernel log reported, by device: facts, which the findings judge."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

from commwatch_exporters.snapshot import Snapshot


def driver_events(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """Each GPU and NVSwitch that had events, and how often each code came since the totals began."""
    latest = {
        labels["pci_bus_id"]: value for labels, value in snapshot.samples("commwatch_gpu_last_xid_timestamp_seconds")
    }
    for (gpu, address), codes in _codes(snapshot, "commwatch_gpu_xid_events_total", "gpu", "pci_bus_id").items():
        when = f", last {_moment(latest[address])}" if address in latest else ""
        yield f"GPU{gpu} ({address})", f"Xid {codes}{when}"
    for (device,), codes in _codes(snapshot, "commwatch_nvswitch_sxid_events_total", "device").items():
        yield f"NVSwitch {device}", f"SXid {codes}"


def _codes(snapshot: Snapshot, metric: str, *device: str) -> dict[tuple[str, ...], str]:
    """``79 (1 ×), 94 (3 ×)`` by device; the last label of the metric is the code."""
    found: dict[tuple[str, ...], list[str]] = {}
    for labels, count in snapshot.samples(metric):
        if count:
            *_, code = labels.values()
            found.setdefault(tuple(labels[name] for name in device), []).append(f"{code} ({count:g} ×)")
    return {key: ", ".join(codes) for key, codes in found.items()}


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
