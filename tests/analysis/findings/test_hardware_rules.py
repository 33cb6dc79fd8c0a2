"""All rules of the hardware together: no number that a driver may give breaks one, and absence is never a finding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.findings.rules.fabric import FABRIC
from commwatch.findings.rules.gpu import GPU
from commwatch.findings.rules.kernel import KERNEL
from commwatch.findings.rules.nvlink import NVLINK
from commwatch.findings.rules.nvlink_errors import NVLINK_ERRORS
from commwatch.findings.rules.pcie import PCIE_LINKS
from commwatch.findings.rules.pcie_errors import PCIE_ERRORS
from commwatch.findings.rules.rule_set import Look
from commwatch_exporters.catalogue import CATALOGUE
from support.facts import Numbers, before, facts_of, seen_by

SETS = (GPU, FABRIC, NVLINK, NVLINK_ERRORS, PCIE_LINKS, PCIE_ERRORS, KERNEL)
LOOKS = [rule.look for rules in SETS for rule in rules.rules]
LABELS = {
    "gpu": "0", "pci_bus_id": "0000:17:00.0", "peer": "1", "peer_pci_bus_id": "0000:18:00.0", "link": "3",
    "device": "0000:17:00.0", "parent": "0000:16:00.0", "role": "gpu", "severity": "correctable", "xid": "79",
    "sxid": "20034", "message": "fallen_off_bus", "check": "route_unhealthy", "reason": "hw_slowdown",
    "aspect": "generation", "capability": "nvlink", "service": "nvidia-fabricmanager", "direction": "transmit",
}  # fmt: skip
METRICS = [
    family.name
    for family in CATALOGUE.values()
    if family.type != "histogram" and family.name.startswith(tuple(f"commwatch_{one}" for one in (
        "gpu", "nvlink", "nvswitch", "fabric", "service", "pcie", "c2c", "kernel_log",
    )))
]  # fmt: skip
NUMBERS = st.one_of(st.integers(0, 300), st.sampled_from([-1, 2**32 - 1, 2**63, 0.5, 1e-15, 1e-9, 1e300]))


def series(values: dict[str, float]) -> Numbers:
    """One series of each metric."""
    return {
        metric: {tuple(LABELS.get(label, "x") for label in CATALOGUE[metric].labels): value}
        for metric, value in values.items()
    }


@given(st.dictionaries(st.sampled_from(METRICS), NUMBERS, max_size=len(METRICS)), st.data())
def test_no_number_breaks_a_rule(values: dict[str, float], data: st.DataObject) -> None:
    """Whatever stands there, and however it moved: a rule sights codes of the list, or nothing."""
    now = series(values)
    earlier = {metric: data.draw(NUMBERS) for metric in data.draw(st.sets(st.sampled_from(METRICS), max_size=20))}

    facts = facts_of(now, {30.0: {**before(now), **series(earlier)}})

    for look in LOOKS:
        for sighting in seen_by(look, facts):
            assert sighting.evidence


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.__name__)
def test_nothing_read_is_nothing_found(look: Look) -> None:
    """A node without GPUs, or a driver that is not there."""
    assert seen_by(look, facts_of({})) == []


def test_what_pages_is_what_the_design_lets_page() -> None:
    """Whoever makes another code critical wakes someone: this list is changed with care."""
    assert {code.name for rules in SETS for code in rules.codes if code.severity == "critical"} == {
        "gpu_not_answering", "gpu_lost", "gpu_reset_required", "gpu_missing", "gpu_not_listed",
        "gpu_recovery_needed", "xid_fatal",
        "fabric_unhealthy", "fabric_not_joined",
        "nvlink_down", "nvlink_recovery_failed",
        "pcie_width_dropped", "pcie_fatal",
        "xid_fabric", "sxid_fatal",
    }  # fmt: skip
