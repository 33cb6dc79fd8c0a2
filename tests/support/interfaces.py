"""Network interfaces in a directory, as the kernel lays them out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

SLOT = "pci0000:17/0000:18:00.0"
"""Of the first adapter, below /sys/devices."""
FILES: Mapping[str, str] = {
    "type": "1",
    "statistics/tx_bytes": "18446744073709551615",
    "statistics/rx_bytes": "2000",
    "statistics/tx_packets": "31",
    "statistics/rx_packets": "32",
    "statistics/tx_errors": "3",
    "statistics/rx_errors": "4",
    "statistics/tx_dropped": "5",
    "statistics/rx_dropped": "6",
    "statistics/rx_crc_errors": "61",
    "statistics/rx_missed_errors": "62",
    "carrier_changes": "7",
    "carrier_down_count": "3",
    "carrier": "1",
    "speed": "400000",
    "mtu": "9000",
}


def add_interface(
    sysfs: Path,
    name: str,
    device: str = SLOT,
    driver: str = "mlx5_core",
    changes: Mapping[str, str | bytes | None] = {},
) -> Path:
    """Make an interface; ``device`` is its path below /sys/devices, empty for a virtual interface.

    ``changes`` replaces the contents of files; None leaves a file out.
    """
    home = sysfs / "devices" / (device or "virtual") / "net" / name
    home.mkdir(parents=True)
    if device:
        (home / "device").symlink_to("../..")
        bind(sysfs, driver, device)
    for file, text in {**FILES, **changes}.items():
        if text is not None:
            (home / file).parent.mkdir(exist_ok=True)
            (home / file).write_bytes(text if isinstance(text, bytes) else f"{text}\n".encode())
    listing = sysfs / "class/net"
    listing.mkdir(parents=True, exist_ok=True)
    (listing / name).symlink_to(os.path.relpath(home, listing))
    return home


def bind(sysfs: Path, driver: str, device: str = SLOT) -> None:
    """Give a device a driver in place of the one that it has."""
    (sysfs / "bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
    link = sysfs / "devices" / device / "driver"
    link.unlink(missing_ok=True)
    link.symlink_to(sysfs / "bus/pci/drivers" / driver)
