"""What is made from rules, codes and tables is current: rules of alerts, dashboards and documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from commwatch.generate.documents import DASHBOARDS, RULES, documents
from support.daemon import ROOT

DOCUMENTS = documents(ROOT)


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: file.name)
def test_a_generated_file_is_current(file: Path) -> None:
    """After a change of what it is made from: make docs."""
    assert DOCUMENTS[file].splitlines() == file.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("folder", [RULES, DASHBOARDS], ids=str)
def test_no_generated_file_is_left_over(folder: Path) -> None:
    """A file that nothing makes any more is removed by hand."""
    assert {*(ROOT / folder).iterdir()} <= DOCUMENTS.keys()
