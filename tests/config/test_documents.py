"""What is made from rules, codes and tables is current: rules of alerts, dashboards and documents."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from commwatch.generate.documents import DASHBOARDS, RULES, documents
from support.daemon import ROOT


@pytest.fixture(scope="module")
def made() -> Mapping[Path, str]:
    """The text of each generated file."""
    return documents(ROOT)


def test_generated_files_are_current(made: Mapping[Path, str]) -> None:
    """After a change of what they are made from: make docs."""
    assert [str(file) for file, text in made.items() if file.read_text("utf-8").splitlines() != text.splitlines()] == []


@pytest.mark.parametrize("folder", [RULES, DASHBOARDS], ids=str)
def test_no_generated_file_is_left_over(folder: Path, made: Mapping[Path, str]) -> None:
    """A file that nothing makes any more is removed by hand."""
    assert {*(ROOT / folder).iterdir()} <= made.keys()
