"""Parts that have less than their equals from the first day on."""

from __future__ import annotations

from commwatch.findings.rules.inventory import gpus_below_equals, ports_below_equals
from support.facts import facts_of, seen_by

GPU3 = ("3", "0000:5d:00.0")
GPU_BELOW = "commwatch_gpu_below_equals"
PORT_BELOW = "commwatch_rdma_port_below_equals"


def test_a_gpu_with_less_than_its_equals_is_one_finding() -> None:
    """With all that it has less; one part is enough, none is not."""
    facts = facts_of({GPU_BELOW: {(*GPU3, "nvlinks"): 1, (*GPU3, "lanes"): 8, (*GPU3, "generation"): 0}})

    [sighting] = seen_by(gpus_below_equals, facts)
    assert (sighting.code, sighting.component.identity) == ("gpu_below_equals", f"gpu/{GPU3[1]}")
    assert [(one.what, one.value) for one in sighting.evidence] == [
        ("NVLinks less than its equals", 1),
        ("PCIe lanes less than its equals", 8),
    ]
    assert seen_by(gpus_below_equals, facts_of({GPU_BELOW: {(*GPU3, "nvlinks"): 0}})) == []
    assert seen_by(gpus_below_equals, facts_of({})) == []


def test_a_port_that_is_down_among_equals_is_found() -> None:
    """One that is as its equals is not, nor one that was not compared."""
    port = ("mlx5_3", "1")
    facts = facts_of({PORT_BELOW: {port: 1}, "commwatch_rdma_port_state": {port: 1}})

    [sighting] = seen_by(ports_below_equals, facts)
    assert (sighting.code, sighting.component.identity) == ("port_below_equals", "rdma_port/mlx5_3/1")
    assert sighting.evidence[0].value == "down"
    assert seen_by(ports_below_equals, facts_of({PORT_BELOW: {("mlx5_3", "1"): 0}})) == []
    assert seen_by(ports_below_equals, facts_of({})) == []
