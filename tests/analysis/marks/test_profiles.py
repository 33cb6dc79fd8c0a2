"""The mark of a measured value, and the time of a step of a profile's model on measured bandwidth."""

from __future__ import annotations

import re

import pytest

from commwatch.__main__ import main
from commwatch.diagnosis.marks.profiles import PROFILES, Asked
from commwatch.diagnosis.preflight import preflight
from commwatch.diagnosis.profile import checks_of
from commwatch.units import parse_duration
from support.facts import NOW, facts_of
from support.machines import NodeNumbers, gpus, merged, nvlinks, probe
from support.passes import in_one_pass

H100, A10G = "NVIDIA H100 80GB HBM3", "NVIDIA A10G"


def verdict_of(what: str, *parts: NodeNumbers) -> tuple[str, str]:
    """Verdict and detail of the check that begins so."""
    checks = checks_of(facts_of(merged(*parts)), Asked(), NOW - 3600.0)
    return next((one.verdict, one.detail) for one in checks if one.what.startswith(what))


@in_one_pass(
    "rate, expected, verdict",
    [
        (80.0, 315.0, "passed"),
        (79.9, 315.0, "failed"),
        (80.0, 12.0, "passed"),
        (11.9, 12.0, "published mark"),
        (1.0, 12.0, "published mark"),
        (79.9, 94.1, "failed"),
        (79.9, 93.9, "published mark"),
        (57.7, 68.0, "failed"),
        (57.9, 68.0, "published mark"),
        (1.0, 67.9, "published mark"),
        (1.0, None, "published mark"),
        (80.0, None, "passed"),
    ],
)
def test_a_mark_fails_only_where_this_hardware_should_meet_it(
    rate: float, expected: float | None, verdict: str
) -> None:
    """Within 15 % of what is expected healthy hardware lies; what should not come within 15 % of the mark has none."""
    result = probe("all_reduce", rate * 1e9, None if expected is None else expected * 1e9, ranks=8)

    assert verdict_of("7b: all_reduce", gpus(8, H100), result)[0] == verdict


@in_one_pass(
    "gpu, verdict",
    [("NVIDIA A100-SXM4-80GB", "published mark"), (H100, "failed"), ("NVIDIA A1000", "failed")],
)
def test_hardware_that_is_known_to_stay_below_has_no_verdict(gpu: str, verdict: str) -> None:
    """Whatever a model expects: A100 gives 235 GB/s at most, and its name is matched by whole words."""
    node = merged(gpus(8, gpu), nvlinks(8, "3.0"), probe("all_reduce", 100e9, 400e9, ranks=8))
    found, detail = verdict_of("all_reduce over NVLink", node)

    assert found == verdict
    assert ("230 to 235 GB/s" in detail) == (verdict == "published mark")


ROOMY = gpus(8, H100, memory=6e12)
"""Each holds any model by itself."""


def step_of(profile: str, *parts: NodeNumbers) -> tuple[float, float, float]:
    """Seconds: of the step at both ends, and of one GPU alone."""
    said, _ = preflight(facts_of(merged(*parts)), Asked(PROFILES[profile]), NOW, 3600.0)
    found = re.search(
        r"a step of ([\d.]+ \w+)(?: to ([\d.]+ \w+))? over 8 GPUs, ([\d.]+ \w+) on one alone", said.reason
    )
    assert found, said.reason
    low, high, alone = (parse_duration(one.replace(" ", "")) for one in (found[1], found[2] or found[1], found[3]))
    return low, high, alone


SHORTENED = 5e-3
"""Relative: what three digits leave out."""


def test_computing_is_reckoned_from_the_gpu() -> None:
    """6 × 7 × 10⁹ × 4096 operations at 40 % of 989.4 TFLOP/s; 1.75 × 14 GB are sent at 313 GB/s."""
    _, high, alone = step_of("7b", ROOMY, probe("all_reduce", 313e9, 315e9, ranks=8))

    assert alone == pytest.approx(6 * 7e9 * 4096 / (0.4 * 989.4e12), rel=SHORTENED)
    assert high == pytest.approx(alone + 1.75 * 14 / 313, rel=SHORTENED)


@pytest.mark.parametrize("exchange", [None, 150e9])
def test_the_large_model_sends_activations_that_cannot_be_hidden(exchange: float | None) -> None:
    """2 × 94 all_reduces of 4096 × 4096 values in bf16, and 4 × 94 all_to_alls of an 8th of the tokens for 8 experts
    each, at their own bandwidth where it is known; the GPUs share the computing of 22 × 10⁹ parameters."""
    result = probe("all_reduce", 300e9, 315e9, ranks=8)
    if exchange is not None:
        result = merged(result, probe("exchange", exchange, 157e9, ranks=8, measure="all_to_all"))

    low, high, _ = step_of("235b", ROOMY, result)

    call = 94 * 4096 * 4096 * 2
    sent = 2 * 1.75 * call / 300e9 + 4 * 0.875 * call / (exchange or 300e9)
    computed = 6 * 22e9 * 4096 / (0.4 * 989.4e12) / 8
    assert low == pytest.approx(computed + sent, rel=SHORTENED)
    assert high == pytest.approx(computed + sent, rel=SHORTENED)


def test_the_command_line_offers_all_profiles(capsys: pytest.CaptureFixture[str]) -> None:
    """Its help names them."""
    with pytest.raises(SystemExit):
        main(["diagnose", "--help"])

    assert f"{', '.join(PROFILES)} or a file with your own" in " ".join(capsys.readouterr().out.split())


def test_a_job_is_told_in_words() -> None:
    """How many parameters, how they are split, and what a step takes."""
    assert PROFILES["7b"].job == "7B parameters, DDP, a micro-batch of 4096 tokens"
    assert PROFILES["235b"].job == "235B parameters (22B active), tensor parallel, a micro-batch of 4096 tokens"
