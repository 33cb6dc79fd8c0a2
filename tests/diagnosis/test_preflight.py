"""Whether a job of a profile may start, from results that are young enough."""

from __future__ import annotations

import re
from typing import Any

from commwatch.diagnosis.marks.profiles import PROFILES, Asked, Purpose
from commwatch.diagnosis.preflight import preflight
from commwatch.findings.health import Preflight
from diagnosis.exposed import known_of
from support.facts import NOW
from support.machines import NodeNumbers, gpus, merged, probe
from support.passes import in_one_pass

H100, A10G = "NVIDIA H100 80GB HBM3", "NVIDIA A10G"


def answer(
    *parts: NodeNumbers, profile: str = "7b", alone: float | None = None, max_age: float = 3600.0,
    purpose: Purpose = "training",
) -> Preflight:  # fmt: skip
    """What a preflight says."""
    return preflight(known_of(merged(*parts)).facts, Asked(PROFILES[profile], alone, purpose), NOW, max_age)[0]


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


@in_one_pass("profile, purpose, least", EDGES)
def test_memory_is_judged_at_its_edge(profile: str, purpose: Purpose, least: float) -> None:
    """State of the strategy that splits most, activations computed again, and what is set aside."""
    result = probe("all_reduce", 313e9, 315e9, ranks=8)

    for memory, verdict in ((least + 1e3, "OK"), (least - 1e3, "Warning")):
        said = answer(gpus(8, "NVIDIA Unheard", memory=memory), result, profile=profile, alone=10.0, purpose=purpose)
        assert said.verdict == verdict, said
        assert ("or at least 16 GPUs like these" in said.reason.replace("; at", "; or at")) == (verdict == "Warning")


def test_memory_that_is_lacking_is_not_to_be_mended_by_fewer_gpus() -> None:
    """The next step of the check."""
    facts = known_of(merged(gpus(8, H100), probe("all_reduce", 313e9, 315e9, ranks=8))).facts
    failed = [one for one in preflight(facts, Asked(PROFILES["235b"]), NOW, 3600.0)[1] if one.verdict == "failed"]

    assert [one.what for one in failed] == ["235b: memory of all GPUs"]
    assert failed[0].next_step.startswith("Take GPUs with more memory, or more of them")


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


EIGHT, SLOW = gpus(8, H100), (gpus(8, A10G), probe("all_reduce", 0.82e9, 12e9, ranks=8))
HEALTHY = probe("all_reduce", 313e9, 315e9, ranks=8)
TWO_A10 = (gpus(2, "NVIDIA A10", memory=24.1e9), probe("all_reduce", 10.8e9, 11.9e9, ranks=2))
UNHEARD = gpus(8, "NVIDIA Unheard")
OLD = (gpus(8, A10G), probe("all_reduce", 0.82e9, 12e9, ranks=8, age=601.0))


@in_one_pass(
    "node, asked, verdict, reason",
    [
        # Eight A10G of a cloud, which hold the training only if FSDP splits it: 100 ms alone, 45 s with eight.
        (SLOW, {"alone": 0.1}, "Warning",
         "7b: a step of 44.8 s to 44.9 s over 8 GPUs with FSDP, 100 ms on one alone; GPUs wait 100 % of it, at most "
         "50 % is allowed; all_reduce gives 820 MB/s, 7 % of the 12 GB/s expected here: slower than this hardware "
         "should be; all_reduce bus bandwidth, 64 MiB, 8 GPUs is 820 MB/s, not at least 80 GB/s"),
        # Two A10, however healthy, neither hold 235B parameters nor reach 120 GB/s; 48 GB hold the weights of 7B.
        (TWO_A10, {"profile": "235b"}, "Warning",
         "235b: neither training nor inference fits: training takes 3.77 TB of 48.2 GB; at least 192 GPUs like these;"
         " all_reduce bus bandwidth, 64 MiB, 2 GPUs is 10.8 GB/s, not at least 120 GB/s"),
        (TWO_A10, {"profile": "70b", "purpose": "inference"}, "Warning", "70b: inference does not fit: 154 GB of…"),
        (TWO_A10, {}, "Warning",
         "7b: weights fit, training does not: 119 GB of 48.2 GB; LoRA, inference, or at least 6 GPUs like these;"
         " all_reduce bus bandwidth, 64 MiB, 2 GPUs is 10.8 GB/s, not at least 80 GB/s"),
        (TWO_A10, {"purpose": "lora"}, "Warning", "7b: a step of …"),
        # A large model is refused with what would hold it; one GPU alone is not mentioned.
        ((EIGHT, HEALTHY), {"profile": "235b"}, "Warning",
         "235b: weights fit, training does not: 3.8 TB of 684 GB; LoRA, inference, or at least 48 GPUs like these"),
        ((EIGHT, HEALTHY), {"profile": "235b", "purpose": "lora"}, "OK", "235b: a step of 190 ms over 8 GPUs; GPUs…"),
        ((EIGHT, HEALTHY), {"profile": "235b", "purpose": "inference"}, "OK",
         "235b: all_reduce gave 313 GB/s 60 s ago, at least 120 GB/s are required"),
        # Of the memory the driver counts before the table; a GPU that neither knows is Unknown.
        ((gpus(8, H100, memory=8e9), HEALTHY), {}, "Warning", "7b: …"),
        ((UNHEARD, HEALTHY), {}, "Unknown", "7b: how much memory these GPUs have is not known"),
        # A mark that is missed is refused with the step to expect.
        ((EIGHT, probe("all_reduce", 60e9, 315e9, ranks=8)), {}, "Warning",
         "7b: a step of 435 ms to 843 ms over 8 GPUs with ZeRO-1; …"
         "all_reduce bus bandwidth, 64 MiB, 8 GPUs is 60 GB/s, not at least 80 GB/s"),
        # A node that suits says what to expect, with the age of the measurements behind it.
        ((EIGHT, probe("all_reduce", 313e9, 315e9, ranks=8, age=240.0)), {}, "OK",
         "7b: a step of 435 ms to 513 ms over 8 GPUs with ZeRO-1; GPUs wait 0 to 15 % of it; all_reduce gave 313 GB/s "
         "4 min ago"),
        # An old result refuses nothing, however bad it was.
        (OLD, {"max_age": 600.0}, "Unknown", "7b: …"),
        (OLD, {"max_age": 602.0}, "Warning", "7b: …"),
        # GPUs that no probe reaches, or not all together; no GPU at all.
        ((EIGHT,), {}, "Unknown", "7b: no probe measures all_reduce over all 8 GPUs"),
        ((EIGHT, probe("all_reduce", 313e9, 315e9, ranks=4)), {}, "Unknown", "7b: …"),
        ((), {}, "Unknown", "7b: no GPU is known"),
        # An unheard GPU that meets the mark suits: the mark alone says so.
        ((gpus(2, "NVIDIA Unheard", memory=80e9), probe("all_reduce", 90e9, 100e9, ranks=2)), {}, "OK",
         "7b: all_reduce gave 90 GB/s 60 s ago, at least 80 GB/s are required"),
        # One GPU needs no result: it talks to no other; a model that it cannot hold is refused all the same.
        ((gpus(1, H100),), {"purpose": "lora"}, "OK", "7b: …"),
        ((gpus(1, H100),), {}, "Warning",
         "7b: weights fit, training does not: 115 GB of 85.5 GB; LoRA, inference, or at least 2 GPUs like these"),
    ],
)  # fmt: skip
def test_what_a_node_is_said_to_be_fit_for(
    node: tuple[NodeNumbers, ...], asked: dict[str, Any], verdict: str, reason: str
) -> None:
    """With the numbers that decide; … is any text."""
    said = answer(*node, **asked)

    assert said.verdict == verdict
    assert re.fullmatch(re.escape(reason).replace("…", ".*"), said.reason)


def test_a_slower_node_is_never_told_better() -> None:
    """Neither by the marks nor by the step, whatever is expected."""
    order = ("OK", "Warning")
    for expected in (12e9, 90e9, 120e9, 315e9, None):
        for profile in ("7b", "235b"):
            rates = [400e9 * 0.81**power for power in range(24)]
            said = [
                answer(gpus(8, H100, 6e11), probe("all_reduce", rate, expected, ranks=8), profile=profile).verdict
                for rate in rates
            ]  # fmt: skip
            assert [order.index(one) for one in said] == sorted(order.index(one) for one in said)
            assert {said[0], said[-1]} == {"OK", "Warning"}
