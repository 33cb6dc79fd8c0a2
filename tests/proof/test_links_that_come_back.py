"""Lives with an NVLink that goes down and comes back: its falls, its Xids and its SXids are one notification."""

from __future__ import annotations

import pytest

from support.lives.score import score_of_seed

pytestmark = pytest.mark.prometheus


@pytest.mark.parametrize("seed", [3, 87, 127, 140, 1_000_083], ids=lambda seed: f"seed {seed}")
def test_a_link_that_comes_back_is_one_page(seed: int) -> None:
    """Between GPUs or at an NVSwitch, for 6 to 19 s each time, from the boot on, over a restart, around a pause."""
    told = score_of_seed(seed)

    assert (told.right, [one.line for one in told.misses]) == (told.faults, [])
