"""Evidence and next steps as people read them."""

from __future__ import annotations

from commwatch.findings.codes import CODES, next_step_of
from commwatch.findings.finding import Component, Evidence, EvidenceUnit, Match, format_evidence


def test_numbers_have_three_digits_and_counts_all_of_theirs() -> None:
    """More digits of a rate are noise; a count is exact."""
    cases: list[tuple[float, EvidenceUnit, str]] = [
        (199.983, "", "200"),
        (2e-11, "", "2e-11"),
        (1234567.0, "", "1234567"),
        (1234.56, "", "1235"),
        (0.0, "", "0"),
        (1.0, "events", "once"),
        (1234567.0, "events", "1234567 times"),
        (0.0314, "ratio", "3.14 %"),
        (2e-11, "ratio", "2e-11"),
        (16.0, "lanes", "x16"),
        (3.333, "per_hour", "3.33 per hour"),
        (float("inf"), "", "inf"),
    ]
    for value, unit, words in cases:
        assert format_evidence(Evidence("errors", value, unit)) in (f"errors: {words}", f"errors, {words}")


def test_a_next_step_names_the_part() -> None:
    """Nobody has to look up what the finding knows; no placeholder of a code is left for a part of its kind."""
    cases = [
        ("adapter_troubled", Component("adapter", "0000:3c:00.0"), "journalctl -k -g 0000:3c:00.0"),
        ("pcie_nonfatal", Component("pcie_link", "0000:18:00.0"), "journalctl -k -g 0000:18:00.0"),
        ("device_unread", Component("gpu", "0000:18:00.0"), "nvidia-smi -q -i 0000:18:00.0"),
        ("device_unread", Component("gpu", "index:3"), "nvidia-smi -q -i 3"),
        ("rdma_counter_saturated", Component("rdma_port", "mlx5_5/1"), "perfquery -R -C mlx5_5 -P 1"),
    ]
    for code, component, words in cases:
        step = next_step_of(Match(code, component, ()))
        assert words in step
        assert not any(word in step for word in ("ADDRESS", "DEVICE", "PORT"))
    assert next_step_of(Match("xid_gpu", Component("gpu", "0000:18:00.0"), (), next_step="Reset it.")) == "Reset it."
    assert next_step_of(Match("gpu_lost", Component("gpu", "0000:18:00.0"), ())) == CODES["gpu_lost"].next_step
