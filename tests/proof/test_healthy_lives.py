"""200 days of healthy nodes, drawn at random, at stepped time; ``benchmarks.lives --healthy-days`` plays any number."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from support.lives.healthy import DAYS, Silence, healthy_life, silence

pytestmark = pytest.mark.prometheus

NODES = 20


def test_nobody_is_paged_for_a_healthy_node(capsys: pytest.CaptureFixture[str]) -> None:
    """Jobs, reboots, reloads of the driver, restarts, harmless Xids, congestion: no page, no grave finding."""
    total = Silence()
    for seed in range(NODES):
        with tempfile.TemporaryDirectory() as folder:
            total.add(silence(healthy_life(seed, DAYS), Path(folder)))
    with capsys.disabled():
        print(total.line)

    assert total.pages == []
    assert total.findings == []
