"""The profile of a node: what equal nodes have in common, scope by scope."""

from __future__ import annotations

from pathlib import Path

import pytest

from commwatch.findings.profile import LONGEST_VALUE, profile_of, profile_readings, shortened
from commwatch_exporters.node.model import Node
from support.facts import Numbers, facts_of, shipped
from support.simulated_daemon import whole_node

READ: Numbers = {
    "commwatch_software_info": {("570.124.06", "12.570", "12.8"): 1.0},
    "commwatch_probe_info": {
        ("all_reduce", "nccl", "all_reduce", "8", "67108864", "8", "2.26.2", "2.7", "a1b2", "model"): 1.0,
        ("host", "gloo", "all_reduce", "8", "4194304", "2", "", "2.7", "", "model"): 1.0,
    },
}


def test_what_is_known_has_a_series_and_nothing_else() -> None:
    """NCCL and its settings are those of the probes that use it."""
    found = {labels[0]: labels[1] for _, labels, _ in profile_readings(facts_of(READ), shipped(), ())}

    assert found == {"driver": "570.124.06", "cuda": "12.8", "nccl": "2.26.2", "nccl_settings": "a1b2"}
    assert list(profile_readings(facts_of({}), shipped(), ())) == []


def test_parts_are_counted_and_the_firmware_stands_with_its_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a simulated node with eight GPUs and eight ports."""
    with whole_node("h100x8ndr", tmp_path, monkeypatch) as node:
        found = dict(profile_of(Node(node.snapshot())))

    assert found["gpus"] == "8 NVIDIA H100 80GB HBM3"
    assert found["rdma_ports"] == "2 MT4125 Ethernet, 8 MT4129 InfiniBand"
    assert found["rdma_firmware"]
    assert all(len(shortened(value)) <= LONGEST_VALUE for value in found.values())


def test_a_long_value_stands_as_its_digest() -> None:
    """A label has a limit, and two values still differ."""
    assert shortened("x" * LONGEST_VALUE) == "x" * LONGEST_VALUE
    first, second = (shortened(one * 65) for one in "xy")
    assert first.startswith("sha256:")
    assert first != second
