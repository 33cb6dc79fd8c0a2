"""Whether the origin of a source is on this node at all; looks at names only, opens no device."""

from __future__ import annotations

from pathlib import Path


def nvidia_driver_present(procfs: Path) -> bool:
    """Whether an NVIDIA kernel driver is loaded."""
    return (procfs / "driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists()
