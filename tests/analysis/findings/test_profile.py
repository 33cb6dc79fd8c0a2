"""The profile of a node: what equal nodes have in common, scope by scope."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commwatch import __version__
from commwatch_exporters.snapshot import Value
from support.fed_daemon import FedDaemon
from support.simulated_daemon import simulated

DRIVER = ("570.124.06", "12.570", "12.8")
INFOS = [
    ("all_reduce", "nccl", "all_reduce", "8", "67108864", "8", "2.26.2", "2.7", "a1b2", "model"),
    ("host", "gloo", "all_reduce", "8", "4194304", "2", "", "2.7", "", "model"),
]


def profile(daemon: FedDaemon, software: tuple[str, ...] = DRIVER) -> dict[str, str]:
    """Scope and value on the page of a daemon that has read this."""
    read: dict[Any, Value] = {("commwatch_software_info", software): 1.0}
    read |= {("commwatch_probe_info", labels): 1.0 for labels in INFOS}
    daemon.engine.store.put("read", "", daemon.block(read), 1e9)
    daemon.engine.look()
    return shown(daemon)


def shown(daemon: FedDaemon) -> dict[str, str]:
    found = {labels[0]: labels[1] for labels in daemon.series("profile_info")}
    assert found.pop("commwatch") == __version__
    return found


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FedDaemon:
    return FedDaemon(tmp_path, monkeypatch)


def test_what_is_known_has_a_series_and_nothing_else(daemon: FedDaemon) -> None:
    """NCCL and its settings are those of the probes that use it."""
    daemon.engine.look()
    assert shown(daemon) == {}
    assert profile(daemon) == {"driver": "570.124.06", "cuda": "12.8", "nccl": "2.26.2", "nccl_settings": "a1b2"}


def test_a_long_value_stands_as_its_digest(daemon: FedDaemon) -> None:
    """A label has a limit, and two values still differ."""
    assert profile(daemon, ("x" * 64, *DRIVER[1:]))["driver"] == "x" * 64
    first, second = (profile(daemon, (one * 65, *DRIVER[1:]))["driver"] for one in "xy")
    assert first.startswith("sha256:")
    assert first != second


def test_parts_are_counted_and_the_firmware_stands_with_its_adapter(tmp_path: Path) -> None:
    """Of a simulated node with eight GPUs and eight ports."""
    with simulated("h100x8ndr", tmp_path) as node:
        node.step_to(60.0)
        found = {labels["scope"]: labels["value"] for labels, _ in node.exposed().samples("commwatch_profile_info")}

    assert found["gpus"] == "8 NVIDIA H100 80GB HBM3"
    assert found["rdma_ports"] == "2 MT4125 Ethernet, 8 MT4129 InfiniBand"
    assert found["rdma_firmware"]
