"""Parts that have less than their equals from the first day on."""

from __future__ import annotations

import pytest

from support.facts import facts_of, seen_by

GPU3 = ("3", "0000:5d:00.0")
GPU_BELOW = "commwatch_gpu_below_equals"


def test_a_gpu_with_less_than_its_equals_is_one_finding() -> None:
    """With all that it has less; one part is enough, none is not."""
    facts = facts_of({GPU_BELOW: {(*GPU3, "nvlinks"): 1, (*GPU3, "lanes"): 8, (*GPU3, "generation"): 0}})

    [match] = seen_by("gpu_below_equals", facts)
    assert (match.code, match.component.identity) == ("gpu_below_equals", f"gpu/{GPU3[1]}")
    assert [(one.what, one.value) for one in match.evidence] == [
        ("NVLinks less than its equals", 1),
        ("PCIe lanes less than its equals", 8),
    ]
    assert seen_by("gpu_below_equals", facts_of({GPU_BELOW: {(*GPU3, "nvlinks"): 0}})) == []
    assert seen_by("gpu_below_equals", facts_of({})) == []


def test_gpus_with_less_than_their_product_are_one_finding_by_aspect() -> None:
    """With each GPU and what it lacks; a node whose GPUs lack nothing has none."""
    below, gpu4 = "commwatch_gpu_below_product", ("4", "0000:61:00.0")
    facts = facts_of({below: {(*GPU3, "lanes"): 8, (*gpu4, "lanes"): 8, (*GPU3, "generation"): 0}})

    [match] = seen_by("gpu_below_product", facts)
    assert (match.code, match.component.words) == ("gpu_below_product", "PCIe lanes of 2 GPUs")
    assert [(one.what, one.value) for one in match.evidence] == [
        ("PCIe lanes that GPU3 (0000:5d:00.0) lacks", 8),
        ("PCIe lanes that GPU4 (0000:61:00.0) lacks", 8),
    ]
    assert match.next_step == ""
    [match] = seen_by("gpu_below_product", facts_of({below: {(*GPU3, "nvlinks"): 2}}))
    assert "fabric manager" in match.next_step
    assert seen_by("gpu_below_product", facts_of({below: {(*GPU3, "lanes"): 0}})) == []
    assert seen_by("gpu_below_product", facts_of({})) == []


@pytest.mark.parametrize(
    ("source", "said"), [("board", "expected by the board"), ("configured", "expected by the configuration")]
)
def test_what_was_never_seen_names_the_gpu_and_who_asks_for_it(source: str, said: str) -> None:
    """The GPU that has fewer, and whether the board or the configuration asks for the parts."""
    facts = facts_of(
        {
            "commwatch_never_seen": {("nvlink",): 18},
            "commwatch_expected": {("nvlink",): 144},
            "commwatch_inventory_info": {("nvlink", source): 1},
            "commwatch_gpu_never_seen": {(*GPU3, "nvlink"): 18},
        }
    )

    [match] = seen_by("parts_never_seen", facts)
    assert [(one.what, one.value) for one in match.evidence] == [
        ("NVLinks never seen", 18),
        (said, 144),
        ("NVLinks that GPU3 (0000:5d:00.0) lacks", 18),
    ]
    assert seen_by("parts_never_seen", facts_of({"commwatch_never_seen": {("nvlink",): 0}})) == []
