"""Nodes, processes and the verdict on them, for the tests of the settings audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from commwatch.jobs.settings.facts import NodeFacts, ProcessSettings, RdmaPort, Setting
from commwatch.jobs.settings.judge import judge_settings
from commwatch.jobs.settings.records import SettingRemark
from commwatch.jobs.settings.variables import known_variables

KNOWN = known_variables()


def port(device: str, **fields: Any) -> RdmaPort:
    """Port 1 of an InfiniBand adapter, active, 400 Gbit/s, unless said otherwise."""
    facts: dict[str, object] = {"port": 1, "active": True, "link_layer": "InfiniBand", "rate_gbit": 400.0, **fields}
    return RdmaPort(device, **facts)  # type: ignore[arg-type]


HGX = NodeFacts(
    gpus=8,
    gpu_models=1,
    peer_levels=frozenset({"NVL"}),
    peers_unknown=False,
    nvls=True,
    node_nvlink=False,
    grace=False,
    nic_levels=frozenset({"PIX"}),
    rdma_ports=tuple(port(f"mlx5_{number}") for number in range(8)),
    dual_port_adapter=False,
    peermem=True,
    dma_buf=True,
    interfaces={"lo": True, "eno1": True, "eno2": False, "docker0": False, "ib0": True, "ib1": True},
    cpu_vendor="intel",
    virtual=False,
)
"""Eight H100 on NVSwitches, an adapter beside each."""

CONSUMER = NodeFacts(
    gpus=4,
    gpu_models=1,
    peers_refused=True,
    peers_unknown=False,
    nvls=False,
    node_nvlink=False,
    grace=False,
    rdma_ports=(),
    dual_port_adapter=False,
    peermem=False,
    dma_buf=False,
    interfaces={"lo": True, "enp5s0": True, "docker0": False},
    cpu_vendor="amd",
    virtual=False,
)
"""Four consumer cards that the driver does not let reach each other; no RDMA."""


def process(settings: Mapping[str, str], pid: int | None = None, **fields: Any) -> ProcessSettings:
    """A process with settings in its environment."""
    kept = tuple(Setting(name, value, "environment") for name, value in settings.items())
    return ProcessSettings(kept, pid=pid, **fields)


def rank(number: int, settings: Mapping[str, str], **fields: Any) -> ProcessSettings:
    """A rank of one job; WARN is set, so that nothing is said of messages."""
    one = process({"NCCL_DEBUG": "WARN", **settings}, 100 + number, **fields)
    return replace(one, job="a", rank=str(number))


def judged(node: NodeFacts, settings: Mapping[str, str], **fields: Any) -> tuple[SettingRemark, ...]:
    """The verdict on one environment."""
    return judge_settings([process(settings, **fields)], node, KNOWN)


def said(node: NodeFacts, settings: Mapping[str, str], **fields: Any) -> set[tuple[str, str, str]]:
    """Code, variable and severity of each remark."""
    return {(one.code, one.variable, one.severity) for one in judged(node, settings, **fields)}
