"""The documents made from rules, codes and tables are current."""

from __future__ import annotations

from pathlib import Path

import pytest

from commwatch.generate.documents import documents
from support.daemon import ROOT

DOCUMENTS = documents(ROOT)


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: file.name)
def test_a_generated_document_is_current(file: Path) -> None:
    """After a change of what it is made from: make docs."""
    assert DOCUMENTS[file].splitlines() == file.read_text(encoding="utf-8").splitlines()
