"""Nominal rates of NVLink and PCIe, against published figures."""

from __future__ import annotations

import pytest

from commwatch.node.capacity import nominal_nvlink_rate, pcie_rate
from support.passes import in_one_pass


@pytest.mark.parametrize(
    ("line_rate_mb", "links", "nominal"),
    [(25_781, 6, 150e9), (14_062, 4, 56.25e9), (25_000, 12, 300e9), (26_562, 18, 450e9), (53_125, 18, 900e9)],
    ids=["V100", "RTX 3090", "A100", "H100", "B200"],
)
def test_nominal_rates_are_the_product_figures(line_rate_mb: int, links: int, nominal: float) -> None:
    """The nominal rate of all links is what the vendor publishes for the GPU."""
    rate = nominal_nvlink_rate(line_rate_mb * 1e6)

    assert rate is not None
    assert rate * links == nominal


def test_other_line_rates_are_taken_as_they_are() -> None:
    """A line rate that is not in the table is the best figure; without one the version decides, else nothing does."""
    assert nominal_nvlink_rate(100e9, "5.0") == 100e9
    assert nominal_nvlink_rate(None, "3.1") == 14.0625e9
    assert nominal_nvlink_rate(0, "4.0") == 25e9
    assert nominal_nvlink_rate(None, "7.0") is None
    assert nominal_nvlink_rate(None) is None


@in_one_pass(
    "generation, lanes, rate",
    [
        (1, 16, 4_000_000_000), (2, 8, 4_000_000_000), (3, 16, 15_753_846_154), (4, 16, 31_507_692_308),
        (5, 4, 15_753_846_154), (5, 16, 63_015_384_615), (6, 16, 121_000_000_000),
    ],
)  # fmt: skip
def test_pcie_rates(generation: int, lanes: int, rate: float) -> None:
    """Transfers times lanes times encoding give the published rate."""
    assert pcie_rate(generation, lanes) == pytest.approx(rate, abs=1)


def test_an_unknown_pcie_link_has_no_rate() -> None:
    """An unknown generation, and no lanes, give no rate."""
    assert pcie_rate(7, 16) is None
    assert pcie_rate(0, 16) is None
    assert pcie_rate(5, 0) is None
