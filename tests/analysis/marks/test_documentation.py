"""docs/using/diagnose.md: its marks and verdicts are the code's."""

from __future__ import annotations

import re

from commwatch.diagnosis.check import VERDICTS
from commwatch.diagnosis.marks import table
from commwatch.diagnosis.marks.floors import MACHINES
from commwatch.diagnosis.marks.profiles import PROFILES, WAITING_MOST
from support.daemon import ROOT

PAGE = (ROOT / "docs/using/diagnose.md").read_text(encoding="utf-8")
MARKS_PART = PAGE.split("### The marks")[1].split("### The floors of machine types")[0]
MARKS = [one for one in vars(table).values() if isinstance(one, table.Mark)]
STEP_PART = PAGE.split("### The step of a profile")[1]


def test_the_table_of_marks() -> None:
    """Every mark with what it is about, in the order of the code."""
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", MARKS_PART, re.MULTILINE)

    assert [(name, *rest.split(" | ")) for name, rest in rows] == [
        (mark.name, mark.required, mark.quantity, mark.direction, mark.size, mark.path) for mark in MARKS
    ]


def test_hardware_that_stays_below_a_mark_is_named() -> None:
    """With the mark."""
    for mark in MARKS:
        for known in mark.unmet:
            assert re.search(rf"{known.gpu}\b[^.]* for\s+`{mark.name}`", MARKS_PART)


def test_the_shares_and_profiles() -> None:
    """85 % is healthy, 40 % of the peak is assumed, half a step may be waiting."""
    assert "within 15 % of the mark" in MARKS_PART
    assert "at 40 % of the GPU's peak" in STEP_PART
    assert f"at most {100 * WAITING_MOST:.0f} % of the step" in STEP_PART
    for profile in PROFILES.values():
        assert f"| `{profile.name}` | {profile.parameters / 1e9:g} × 10⁹ parameters" in STEP_PART
        assert f"{profile.tokens} tokens" in STEP_PART


def test_every_verdict_is_explained() -> None:
    """In one table."""
    table = PAGE.split("| verdict | meaning |")[1].split("\n\n")[0]

    assert {*re.findall(r"^\| `([a-z ]+)` \|", table, re.MULTILINE)} == {*VERDICTS}


def test_the_table_of_machine_types() -> None:
    """Every floor that is published for one."""
    rows = re.findall(r"^\| (ND .*) \|$", PAGE, re.MULTILINE)

    assert [row.split(" | ") for row in rows] == [
        [
            f"{one.name.removeprefix('Azure ')}, {one.gpus} GPUs",
            f"{one.all_reduce / 1e9:g} GB/s ({one.all_reduce_bytes / 1e9:g} GB)",
            f"{one.copy / 1e9:g} GB/s",
            "" if one.pair is None else f"{one.pair / 1e9:g} GB/s",
            "" if one.rdma is None else f"{8 * one.rdma / 1e9:g} of {8 * one.adapter / 1e9:g} Gbit/s",
        ]
        for one in MACHINES
    ]
