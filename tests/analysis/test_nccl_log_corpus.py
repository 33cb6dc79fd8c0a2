"""Excerpts of job logs as each NCCL era writes them, each with the cause that an expert names."""

from __future__ import annotations

import io
import re
from pathlib import Path

from commwatch.jobs.logs.categories import SIDES
from commwatch.jobs.logs.culprit import first_culprit
from commwatch.jobs.logs.lines import find_in_line
from commwatch.jobs.logs.reading import read_log
from commwatch.jobs.logs.story import chapters_of
from support.passes import in_one_pass

CORPUS = Path(__file__).parent / "nccl_log_corpus"
ERAS = sorted(path.name for path in CORPUS.glob("*.log"))
LEAST_RIGHT = 0.95
NOTHING = "none"


def excerpts(era: str) -> list[tuple[str, str]]:
    """Expected category and text of each excerpt; a text begins behind a line ``=== CATEGORY``."""
    parts = re.split(r"^=== (\w+)\n", (CORPUS / era).read_text(encoding="utf-8"), flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def offline(text: str) -> str:
    """What ``commwatch diagnose --log`` blames first."""
    chapters = chapters_of([read_log("excerpt", io.BytesIO(text.encode()), 1.77e9).trouble])
    return str(chapters[0].culprit.event.category) if chapters else NOTHING


def live(text: str) -> str:
    """What the daemon blames for what it reads within a minute."""
    findings = [found for line in text.splitlines() if (found := find_in_line(line)) is not None]
    return str(first_culprit(findings) or NOTHING)


@in_one_pass("blame", [offline, live])
@in_one_pass("era", ERAS)
def test_the_first_cause_is_right(era: str, blame: object) -> None:
    """In 95 of 100 excerpts at least; those that are wrong are named."""
    assert callable(blame)
    cases = excerpts(era)
    wrong = [(expected, blame(text), text[:200]) for expected, text in cases if blame(text) != expected]

    assert len(wrong) <= (1 - LEAST_RIGHT) * len(cases), wrong


def test_there_are_enough_excerpts_of_every_kind() -> None:
    """Four eras with 40 excerpts or more each, and each category of a failure as a cause in one of them."""
    assert len(ERAS) == 4
    for era in ERAS:
        assert len(excerpts(era)) >= 40, era
    seen = {expected for era in ERAS for expected, _ in excerpts(era)}
    assert seen >= set(SIDES) - {"ib_flush", "other", "waiting"} | {NOTHING}


@in_one_pass("era", ERAS)
def test_lines_end_as_they_may(era: str) -> None:
    """Line feeds, carriage returns with them, and text of a launcher before each line change nothing."""
    for _, text in excerpts(era):
        lines = text.splitlines()
        assert offline("\r\n".join(lines)) == offline(text)
        assert live("\n".join(f"3: {line}" for line in lines)) == live(text)
