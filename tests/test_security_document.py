"""SECURITY.md: every promise links the test that holds it, that test exists, and the numbers are those in force."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from commwatch.node.hardware_events import MOST_CODES
from commwatch.probes.cycle import nccl_notes
from commwatch.readings import LARGEST_VALUE
from commwatch.state.records import LONGEST_LABEL
from commwatch.workers import wire
from commwatch.workers.sources import READERS
from support.passes import in_one_pass

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
LINK = re.compile(r"\]\((tests/[\w/]+\.py)(?:#(\w+))?\)")
NO_PROMISE = "*No promise*"
PREMISES = ("A driver library, torch, NCCL or a log", "It gives an error for", "- On a shared network add")
"""Sentences that promise nothing: how others begin, and advice."""


def promises(page: str) -> list[str]:
    """The rows of tables and the sentences of a page from "Who is trusted" on that promise something."""
    text = page[page.index("## Who is trusted") :]
    blocks = [re.sub(r"\s+", " ", one).strip() for one in re.split(r"\n\n+|\n(?=[-|])", text)]
    heads = {blocks[place - 1] for place, one in enumerate(blocks) if one.startswith("| ---")}
    found: list[str] = []
    for block in blocks:
        if block in heads or block.startswith(("#", "| ---")) or NO_PROMISE in block:
            continue
        found += [block] if block.startswith("|") else re.split(r"(?<=[.])\s+(?=[A-Z`])", block)
    return [one for one in found if one and not one.startswith(PREMISES)]


def unheld(page: str) -> list[str]:
    """Promises that link no test."""
    return [one for one in promises(page) if not LINK.search(one)]


@cache
def functions(file: str) -> frozenset[str]:
    """The tests in a file; none where there is no file."""
    path = ROOT / file
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(one.name for one in ast.walk(tree) if isinstance(one, ast.FunctionDef))


def dead(page: str) -> list[tuple[str, str]]:
    """Links to tests that are not there."""
    return [(file, name) for file, name in LINK.findall(page) if name not in functions(file)]


def test_every_promise_names_its_test() -> None:
    """Each row and sentence; one without says that it is none."""
    assert len(promises(PAGE)) > 50
    assert unheld(PAGE) == []


def test_every_test_that_is_named_exists() -> None:
    """File and function."""
    assert len(set(LINK.findall(PAGE))) > 50
    assert dead(PAGE) == []


@in_one_pass(
    "changed, finds",
    [
        (PAGE + "\n- Nothing ever fails.\n", "unheld"),
        (PAGE + "\nNothing ever fails.\n", "unheld"),
        (PAGE.replace("- Nothing resets", "- Nothing ever fails. Nothing resets"), "unheld"),
        (PAGE + "\n| all | is well |\n", "unheld"),
        (PAGE + "\n[x](tests/web/test_gate.py#test_that_is_gone)\n", "dead"),
        (PAGE + "\n[x](tests/web/test_that_is_gone.py#test_a)\n", "dead"),
        (PAGE + "\n[x](tests/web/test_gate.py)\n", "dead"),
    ],
)
def test_a_page_that_promises_too_much_is_found(changed: str, finds: str) -> None:
    """The checks above see a promise without a test, and a test that is gone."""
    assert (len(unheld(changed)), len(dead(changed))) == ((1, 0) if finds == "unheld" else (0, 1))


def test_the_numbers_are_those_in_force() -> None:
    """What a child may do at most stands in the code once, and here."""
    of = {row.name: row.bounds for row in READERS}
    mebibyte = 2**20
    for row in (
        f"| {of['nvml'].most_series:,} series |",
        f"| {of['host'].most_series:,} and {of['rdma'].most_series:,} series |",
        f"up to {MOST_CODES} codes of a device",
        f"| {of['jobs'].most_series} series of its own |",
        f"| {of['settings'].most_series} series of its own |",
        f"| finite, up to 10{superscript(LARGEST_VALUE)} |",
        f"| {LONGEST_LABEL} characters, in one line",
        f"| {wire.LONGEST_DETAIL:,} characters, printable |",
        f"| {wire.MOST_DEVICES:,} |",
        f"| {wire.MOST_EARLY}, and after a silence twice what was ordered, {wire.MOST_WAITING:,} at most |",
        f"| {wire.LONGEST_TEXT // mebibyte} MiB each |",
        f"| {nccl_notes.MOST_FILES} files, {nccl_notes.MOST_BYTES // mebibyte} MiB |",
        f"| {of['nvml'].largest_frame // mebibyte} MiB; {of['jobs'].largest_frame // mebibyte} MiB; 1 MiB |",
    ):
        assert row in PAGE, row
    wide = {name for name, one in of.items() if one.largest_frame > wire.LARGEST_FRAME}
    assert wide == {"nvml", "host"}


def superscript(power_of_ten: float) -> str:
    """The exponent, as the page writes it."""
    (exponent,) = re.findall(r"e\+(\d+)$", f"{power_of_ten:.0e}")
    return str(exponent).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
