"""A node of which most stays as it was."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from support.simulated_daemon import whole_node


def test_what_is_expected_stays_while_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes are counted all the time; the inventory and the states of the GPUs are as they were, until an interface
    has been there long enough to be expected."""
    with whole_node("h100x8", tmp_path, monkeypatch) as node:

        def shown() -> list[object]:
            blocks = [node.store.get(group, "") for group in ("inventory", "gpu_state")]
            return [(block.layout.series, list(block.values)) for block in blocks if block is not None]

        node.run()
        before = shown()
        for minutes in range(1, 10):
            node.time = 3600.0 + 60.0 * minutes
            node.run()
            assert shown() == before
            assert node.engine.inventory()["kinds"]["gpu"]["learning_seconds"] == 60 * (10 - minutes)
        assert node.snapshot().value("commwatch_expected", "ethernet_port") is None
        node.time = 3600.0 + 660.0
        node.run()
        assert node.snapshot().value("commwatch_expected", "ethernet_port") == 2
        learned = msgspec.json.encode(node.engine.pipeline.inventory.state)
        node.time += 60.0
        node.run()
        assert msgspec.json.encode(node.engine.pipeline.inventory.state) == learned, "nothing that is worth a write"
