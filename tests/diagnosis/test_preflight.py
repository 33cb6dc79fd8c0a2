"""Whether a job of a profile may start, from results that are young enough."""

from __future__ import annotations

import pytest

from commwatch.diagnosis.marks.profiles import PROFILES, Asked, Purpose
from commwatch.diagnosis.preflight import preflight
from commwatch.findings.health import Preflight
from diagnosis.exposed import known_of
from support.facts import NOW
from support.machines import NodeNumbers, gpus, merged, probe

H100, A10G = "NVIDIA H100 80GB HBM3", "NVIDIA A10G"


def answer(
    *parts: NodeNumbers, profile: str = "7b", alone: float | None = None, max_age: float = 3600.0,
    purpose: Purpose = "training",
) -> Preflight:  # fmt: skip
    """What a preflight says."""
    return preflight(known_of(merged(*parts)).facts, Asked(PROFILES[profile], alone, purpose), NOW, max_age)[0]


def test_a_node_whose_gpus_reach_each_other_slowly_is_refused_with_the_step_to_expect() -> None:
    """Eight A10G of a cloud, which hold the training only if FSDP splits it: 100 ms alone, 45 s with eight."""
    said = answer(gpus(8, A10G), probe("all_reduce", 0.82e9, 12e9, ranks=8), alone=0.1)

    assert said.verdict == "Warning"
    assert said.reason == (
        "7b: a step of 44.8 s to 44.9 s over 8 GPUs with FSDP, 100 ms on one alone; GPUs wait 100 % of it, at most 50 %"
        " is allowed; all_reduce gives 820 MB/s, 7 % of the 12 GB/s expected here: slower than this hardware should be;"
        " all_reduce bus bandwidth, 64 MiB, 8 GPUs is 820 MB/s, not at least 80 GB/s"
    )


def test_what_is_asked_for_and_cannot_be_met_is_refused_with_the_numbers() -> None:
    """Two A10, however healthy, neither hold 235B parameters nor reach 120 GB/s; 48 GB hold the weights of 7B."""
    node = (gpus(2, "NVIDIA A10", memory=24.1e9), probe("all_reduce", 10.8e9, 11.9e9, ranks=2))

    assert answer(*node, profile="235b").reason == (
        "235b: neither training nor inference fits: training takes 3.77 TB of 48.2 GB; at least 192 GPUs like these;"
        " all_reduce bus bandwidth, 64 MiB, 2 GPUs is 10.8 GB/s, not at least 120 GB/s"
    )
    assert answer(*node, profile="70b", purpose="inference").reason.startswith("70b: inference does not fit: 154 GB of")
    assert answer(*node).reason == (
        "7b: weights fit, training does not: 119 GB of 48.2 GB; LoRA, inference, or at least 6 GPUs like these;"
        " all_reduce bus bandwidth, 64 MiB, 2 GPUs is 10.8 GB/s, not at least 80 GB/s"
    )
    assert answer(*node, purpose="lora").reason.startswith("7b: a step of ")


EDGES = (
    # Weights and keys and values of 4096 tokens over eight GPUs, 1.2 GB set aside.
    ("235b", "inference", (2 * 235e9 + 4 * 94 * 4096**2) / 8 + 1.2e9),
    # 16 bytes a parameter over eight GPUs; a layer's input and the layer that is computed again.
    ("235b", "training", 16 * 235e9 / 8 + (2 * 94 + 13) * 4096**2 + 1.2e9),
    # A hundredth is trained.
    ("235b", "lora", (2 + 0.14) * 235e9 / 8 + (2 * 94 + 13) * 4096**2 + 1.2e9),
    # FSDP, the last that DDP turns to, gathers two layers of 32.
    ("7b", "training", 16 * 7e9 / 8 + (2 * 32 + 34) * 4096**2 + 2 * 14e9 / 32 + 1.2e9),
    # DDP holds more than twice of it; ZeRO-1 of adapters hardly less than DDP.
    ("7b", "lora", (2 + 0.14) * 7e9 / 8 + (2 * 32 + 34) * 4096**2 + 2 * 14e9 / 32 + 1.2e9),
)


@pytest.mark.parametrize(("profile", "purpose", "least"), EDGES)
def test_memory_is_judged_at_its_edge(profile: str, purpose: Purpose, least: float) -> None:
    """State of the strategy that splits most, activations computed again, and what is set aside."""
    result = probe("all_reduce", 313e9, 315e9, ranks=8)

    for memory, verdict in ((least + 1e3, "OK"), (least - 1e3, "Warning")):
        said = answer(gpus(8, "NVIDIA Unheard", memory=memory), result, profile=profile, alone=10.0, purpose=purpose)
        assert said.verdict == verdict, said
        assert ("or at least 16 GPUs like these" in said.reason.replace("; at", "; or at")) == (verdict == "Warning")


def test_the_refusal_of_a_large_model_names_what_would_hold_it() -> None:
    """Its weights fit, its training needs six such nodes; one GPU alone is not mentioned."""
    node = (gpus(8, H100), probe("all_reduce", 313e9, 315e9, ranks=8))

    assert answer(*node, profile="235b").reason == (
        "235b: weights fit, training does not: 3.8 TB of 684 GB; LoRA, inference, or at least 48 GPUs like these"
    )
    assert answer(*node, profile="235b", purpose="lora").reason.startswith("235b: a step of 190 ms over 8 GPUs; GPUs")
    assert answer(*node, profile="235b", purpose="inference").reason == (
        "235b: all_reduce gave 313 GB/s 60 s ago, at least 120 GB/s are required"
    )


def test_memory_that_is_lacking_is_not_to_be_mended_by_fewer_gpus() -> None:
    """The next step of the check."""
    facts = known_of(merged(gpus(8, H100), probe("all_reduce", 313e9, 315e9, ranks=8))).facts
    failed = [one for one in preflight(facts, Asked(PROFILES["235b"]), NOW, 3600.0)[1] if one.verdict == "failed"]

    assert [one.what for one in failed] == ["235b: memory of all GPUs"]
    assert failed[0].next_step.startswith("Take GPUs with more memory, or more of them")


def test_unknown_memory_is_neither_ok_nor_refused() -> None:
    """The driver counts before the table; a GPU that neither knows is Unknown."""
    result = probe("all_reduce", 313e9, 315e9, ranks=8)

    assert answer(gpus(8, H100), result).verdict == "OK"
    assert answer(gpus(8, H100, memory=8e9), result).verdict == "Warning"
    assert answer(gpus(8, "NVIDIA Unheard"), result).verdict == "Unknown"
    assert answer(gpus(8, "NVIDIA Unheard"), result).reason == "7b: how much memory these GPUs have is not known"


def test_a_mark_that_is_missed_is_refused_with_the_step_to_expect() -> None:
    """Eight H100 that should give 315 GB/s."""
    said = answer(gpus(8, H100), probe("all_reduce", 60e9, 315e9, ranks=8))

    assert said.verdict == "Warning"
    assert said.reason.startswith("7b: a step of 435 ms to 843 ms over 8 GPUs with ZeRO-1; ")
    assert "all_reduce bus bandwidth, 64 MiB, 8 GPUs is 60 GB/s, not at least 80 GB/s" in said.reason


def test_a_node_that_suits_says_what_to_expect() -> None:
    """With the age of what it rests on."""
    said = answer(gpus(8, H100), probe("all_reduce", 313e9, 315e9, ranks=8, age=240.0))

    assert said.verdict == "OK"
    assert said.reason == (
        "7b: a step of 435 ms to 513 ms over 8 GPUs with ZeRO-1; GPUs wait 0 to 15 % of it; all_reduce gave 313 GB/s "
        "4 min ago"
    )


def test_without_a_young_result_it_is_unknown_and_says_how_old() -> None:
    """Older than asked for, no longer counted by the daemon, none at all, ahead of the clock."""
    node = gpus(8, H100)

    def reason(rate: float | None, age: float | None, max_age: float) -> str:
        said = answer(node, probe("all_reduce", rate, rate, ranks=8, age=age), max_age=max_age)
        assert said.verdict == "Unknown"
        return said.reason

    assert reason(313e9, 601.0, 600.0) == "7b: the last all_reduce result is 10 min 1 s old, more than 10 min"
    assert "20 h old, more than 1 h" in reason(None, 72_000.0, 3600.0)
    assert reason(None, 7200.0, 86_400.0).endswith("2 h old, which the daemon no longer counts")
    assert reason(None, None, 3600.0) == "7b: all_reduce has no result yet"
    assert reason(1e9, -60.0, 3600.0).endswith("ahead of the clock")
    assert reason(313e9, -60.0, 3600.0) == "7b: the last all_reduce result is 60 s ahead of the clock"


def test_an_old_result_refuses_nothing() -> None:
    """However bad it was."""
    slow = probe("all_reduce", 0.82e9, 12e9, ranks=8, age=601.0)

    assert answer(gpus(8, A10G), slow, max_age=600.0).verdict == "Unknown"
    assert answer(gpus(8, A10G), slow, max_age=602.0).verdict == "Warning"


def test_gpus_that_no_probe_reaches_are_unknown() -> None:
    """No all_reduce over all of them, no GPU at all."""
    assert answer(gpus(8, H100)).reason == "7b: no probe measures all_reduce over all 8 GPUs"
    assert answer(gpus(8, H100), probe("all_reduce", 313e9, 315e9, ranks=4)).verdict == "Unknown"
    assert answer().reason == "7b: no GPU is known"


def test_an_unheard_gpu_that_meets_the_mark_suits() -> None:
    """The mark alone says so."""
    said = answer(gpus(2, "NVIDIA Unheard", memory=80e9), probe("all_reduce", 90e9, 100e9, ranks=2))

    assert said.verdict == "OK"
    assert said.reason == "7b: all_reduce gave 90 GB/s 60 s ago, at least 80 GB/s are required"


def test_one_gpu_needs_no_result() -> None:
    """It talks to no other GPU; a model that it cannot hold is refused all the same."""
    assert answer(gpus(1, H100), purpose="lora").verdict == "OK"
    assert answer(gpus(1, H100)).reason == (
        "7b: weights fit, training does not: 115 GB of 85.5 GB; LoRA, inference, or at least 2 GPUs like these"
    )


def test_a_slower_node_is_never_told_better() -> None:
    """Neither by the marks nor by the step, whatever is expected."""
    order = ("OK", "Warning")
    for expected in (12e9, 90e9, 120e9, 315e9, None):
        for profile in ("7b", "235b"):
            rates = [400e9 * 0.81**power for power in range(40)]
            said = [
                answer(gpus(8, H100, 6e11), probe("all_reduce", rate, expected, ranks=8), profile=profile).verdict
                for rate in rates
            ]  # fmt: skip
            assert [order.index(one) for one in said] == sorted(order.index(one) for one in said)
            assert {said[0], said[-1]} == {"OK", "Warning"}
