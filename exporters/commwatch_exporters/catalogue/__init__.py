"""Every metric once: name, type, unit, labels, help and origin; documentation, rules and tests follow it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from commwatch_exporters.catalogue import (
    cluster,
    daemon,
    ethernet,
    fabric,
    findings,
    gpu,
    honesty,
    inventory,
    jobs,
    kernel,
    nvlink,
    pairs,
    pcie,
    probe,
    rdma,
    utilisation,
)
from commwatch_exporters.catalogue.metric import Limit, Metric, MetricType

__all__ = ["CATALOGUE", "LIMITS", "OPT_IN", "SECTIONS", "Metric", "MetricType", "family_of"]

SECTIONS: Mapping[str, tuple[Metric, ...]] = MappingProxyType(
    {
        "GPU": gpu.ROWS,
        "NVLink": nvlink.ROWS,
        "Fabric": fabric.ROWS,
        "PCIe": pcie.ROWS,
        "Kernel log": kernel.ROWS,
        "RDMA": rdma.ROWS,
        "Ethernet": ethernet.ROWS,
        "Inventory": inventory.ROWS,
        "Utilisation": utilisation.ROWS,
        "Probe": probe.ROWS,
        "Pairs": pairs.ROWS,
        "Between nodes": cluster.ROWS,
        "Jobs": jobs.ROWS,
        "Verdict": findings.ROWS,
        "Honesty": honesty.ROWS,
        "Daemon": daemon.ROWS,
    }
)
"""The metrics by subject, in the order of the page."""

CATALOGUE: Mapping[str, Metric] = MappingProxyType(
    {metric.name: metric for rows in SECTIONS.values() for metric in rows}
)
"""Every metric family by its full name, in the order of the page."""

OPT_IN: frozenset[str] = frozenset(metric.name for metric in CATALOGUE.values() if metric.opt_in)
"""Families that are exposed only where the configuration asks for them."""


def _limits() -> Mapping[str, tuple[tuple[Metric, Limit], ...]]:
    found: dict[str, tuple[tuple[Metric, Limit], ...]] = {}
    for metric in CATALOGUE.values():
        for limit in metric.limits:
            found[limit.finding] = (*found.get(limit.finding, ()), (metric, limit))
    return MappingProxyType(found)


LIMITS = _limits()
"""By code of a finding: the counters whose rise is evidence of it, with how far each may rise."""

_HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")


@cache
def family_of(series_name: str) -> Metric:
    """The family that a series belongs to.

    Raises:
        KeyError: the catalogue has no such metric.
    """
    metric = CATALOGUE.get(series_name)
    if metric is not None:
        return metric
    for suffix in _HISTOGRAM_SUFFIXES:
        metric = CATALOGUE.get(series_name.removesuffix(suffix))
        if metric is not None and metric.type == "histogram":
            return metric
    raise KeyError(f"{series_name} is not in the catalogue of metrics")
