"""Every healthy preset gives what is expected of it."""

from __future__ import annotations

import pytest

from commwatch_rehearsal.simulation.presets import PRESETS
from probes.test_healthy_nodes import assert_as_expected


@pytest.mark.parametrize("preset", PRESETS)
def test_every_probe_of_every_healthy_node_gives_what_is_expected(preset: str) -> None:
    """Each measure of the default schedule, each step and each pair; and no rank is behind the others."""
    assert_as_expected(preset)
