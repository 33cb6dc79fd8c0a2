"""What a step of a profile's model takes on measured bandwidth."""

from __future__ import annotations

import pytest

from commwatch.commands.profile_options import PROFILE_NAMES
from commwatch.diagnosis.estimate.model.span import Span, exactly
from commwatch.diagnosis.marks.profiles import PROFILES, Asked, prospect_of

SEVEN, LARGE = PROFILES["7b"], PROFILES["235b"]
H100 = "NVIDIA H100 80GB HBM3"


def test_the_command_line_offers_all_profiles() -> None:
    """It does not load them."""
    assert tuple(PROFILES) == PROFILE_NAMES


def test_eight_gpus_that_reach_each_other_slowly() -> None:
    """100 ms alone, 30 s with eight: 1.75 × 14 GB of gradients at 0.82 GB/s."""
    found = prospect_of(SEVEN, "NVIDIA A10G", 8, exactly(0.82e9), 0.1)

    assert found is not None
    assert found.step.step_seconds.low == pytest.approx(1.75 * 14 / 0.82)
    assert found.step.step_seconds.high == pytest.approx(1.75 * 14 / 0.82 + 0.1)
    assert found.words == "a step of 29.9 s to 30 s over 8 GPUs, 100 ms on one alone"
    assert found.waiting == "100 %"


def test_computing_is_reckoned_from_the_gpu() -> None:
    """6 × 7 × 10⁹ × 4096 operations at 40 % of 989.4 TFLOP/s, which the basis says."""
    found = prospect_of(SEVEN, H100, 8, exactly(313e9), None)

    assert found is not None
    assert found.alone_seconds == pytest.approx(6 * 7e9 * 4096 / (0.4 * 989.4e12))
    assert found.basis == "assumed: 40 % of 989.4 TFLOP/s (H100 data sheet, SXM)"
    assert found.step.step_seconds.high - found.alone_seconds == pytest.approx(1.75 * 14 / 313)


def test_a_gpu_that_is_not_known_needs_the_time_of_a_step() -> None:
    """Nothing is made up."""
    assert prospect_of(SEVEN, "NVIDIA Unheard", 8, exactly(1e9), None) is None
    assert prospect_of(SEVEN, "", 8, exactly(1e9), None) is None
    assert prospect_of(SEVEN, "", 8, exactly(1e9), 0.1) is not None


def test_the_large_model_sends_activations_that_cannot_be_hidden() -> None:
    """2 × 94 all_reduces of 4096 × 4096 values in bf16, and 4 × 94 all_to_alls of an 8th of the tokens for 8 experts
    each; the GPUs share the computing of 22 × 10⁹ parameters."""
    found = prospect_of(LARGE, H100, 8, Span(300e9, 313e9), None)

    assert found is not None
    sent = (2 * 1.75 + 4 * 0.875) * 94 * 4096 * 4096 * 2
    assert found.step.waiting_seconds.low == pytest.approx(sent / 313e9)
    assert found.step.waiting_seconds.high == pytest.approx(sent / 300e9)
    assert found.step.compute_seconds.low == pytest.approx(6 * 22e9 * 4096 / (0.4 * 989.4e12) / 8)


def test_without_a_profile_both_are_shown() -> None:
    """In the order of their size."""
    assert [one.name for one in Asked().profiles] == ["7b", "235b"]
    assert [one.name for one in Asked(PROFILES["235b"]).profiles] == ["235b"]
    assert SEVEN.job == "7B parameters, DDP, a micro-batch of 4096 tokens"
    assert LARGE.job == "235B parameters (22B active), tensor parallel, a micro-batch of 4096 tokens"
