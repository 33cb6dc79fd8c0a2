"""docs/reference/metrics.md and the catalogue."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from commwatch_exporters.catalogue import CATALOGUE, SECTIONS, Metric
from commwatch_exporters.documentation import document, main

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def test_the_document_is_current() -> None:
    """docs/reference/metrics.md is what the catalogue says; if not: python -m commwatch_exporters.documentation."""
    assert document(SECTIONS) == DOCUMENT.read_text(encoding="utf-8")


def test_every_metric_stands_once() -> None:
    """Each metric has one row, with its labels."""
    text = document(SECTIONS)

    assert [name for name in CATALOGUE if text.count(f"| `{name}` |") != 1] == []
    assert all(f"`{label}`" in text for metric in CATALOGUE.values() for label in metric.labels)


def test_texts_do_not_break_the_table() -> None:
    """A bar, a star or an angle bracket of a text is shown as itself."""
    metric = Metric("commwatch_gpu_x", "gauge", (), "One | two.", "/sys/*/<name>")

    assert r"| One \| two. | /sys/\*/&lt;name> |" in document({"GPU": [metric]})


def test_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """--check fails for a file that is missing or old, writes nothing, and passes after a run without it."""
    file = tmp_path / "metrics.md"

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["documentation", *arguments, str(file)])
        return main()

    assert run("--check") == 1
    assert not file.exists()
    file.write_text("old", encoding="utf-8")
    assert run("--check") == 1
    assert "is not what the catalogue says" in capsys.readouterr().err
    assert run() == 0
    assert run("--check") == 0
