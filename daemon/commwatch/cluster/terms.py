"""The words of a verdict on a run between nodes."""

from __future__ import annotations

from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["leaf", "uplink", "node", "nic", "pair", "network"]
Fault: TypeAlias = Literal["failed", "transport", "bandwidth", "latency"]
Direction: TypeAlias = Literal["out", "in", "both"]
LeafSource: TypeAlias = Literal["none", "slurm", "topograph", "file"]
