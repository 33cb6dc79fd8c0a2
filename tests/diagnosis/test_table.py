"""The checks as rows: which ones become one, and what it says."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from commwatch.diagnosis.check import Check, CheckVerdict
from commwatch.diagnosis.table import TableRow, branch_rows, counted, notes_of


def checks(measured: Sequence[str], verdict: CheckVerdict = "passed", required: str = "at least 8") -> list[Check]:
    return [
        Check(branch="topology", what="lanes", where=f"GPU{gpu}", measured=text, required=required, verdict=verdict)
        for gpu, text in enumerate(measured)
    ]


def rows(found: Sequence[Check]) -> list[TableRow]:
    [(_, only)] = branch_rows(found)
    return only


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        (["8", "8", "8"], "8"),
        (["x8", "x16", "x2"], "x2 to x16"),
        (["48.5 GB/s", "9 GB/s", "50 GB/s"], "9 to 50 GB/s"),
        (["900 MB/s", "1.2 GB/s", "1.3 GB/s"], "various"),
        (["8", "none", "8"], "various"),
        (["", "", ""], ""),
        (["index 3", "index 1", "index 2"], "index 1 to 3"),
    ],
)
def test_one_row_says_from_where_to_where(measured: list[str], said: str) -> None:
    """The least and the greatest number in their unit, else that they are various; what is equal stands once."""
    [row] = rows(checks(measured))

    assert (row.measured, row.where, len(row.checks)) == (said, "3 parts, GPU0 to GPU2", 3)


def test_few_stay_apart() -> None:
    """Two of what is well, and eight of what failed: each may need hands."""
    assert len(rows(checks(["8"] * 2))) == 2
    assert len(rows(checks(["4"] * 8, "failed"))) == 8
    assert len(rows(checks(["4"] * 9, "failed"))) == 1


def test_different_things_are_not_mixed() -> None:
    """A passed one and a failed one of the same quantity are two rows, the failed one above."""
    found = rows([*checks(["8"] * 5), *checks(["4"], "failed")])

    assert [(row.verdict, len(row.checks)) for row in found] == [("failed", 1), ("passed", 5)]


def test_a_note_is_said_once() -> None:
    """However many checks share it; of what passed nothing is said."""
    shared = [
        Check(branch="topology", what="a", where=str(number), verdict="failed", detail="Dirty", next_step="Clean it.")
        for number in range(3)
    ]
    fine = Check(branch="topology", what="b", verdict="passed", detail="All is well.")

    assert [note for _, note in notes_of(rows([*shared, fine]))] == ["Dirty. Clean it."]


def test_counts_are_said_in_words() -> None:
    """Most severe first; nothing of what there is none."""
    assert counted([*checks(["8", "8"]), *checks(["4"], "failed")]) == "1 failed, 2 passed"
