"""Excerpts of public threads, half of them apart from the rules, are answered no worse than before."""

from __future__ import annotations

from collections import Counter

from benchmarks.public_logs import UNSETTLED, judged

MOST_WRONG = {"A": 0, "B": 0, UNSETTLED: 8}
"""Of threads without a settled cause most answers only say what the line says, and count as wrong."""
LEAST_RIGHT = {"A": 24, "B": 21}


def test_no_more_answers_are_wrong() -> None:
    """``python -m benchmarks.public_logs --show wrong`` prints them."""
    found = Counter((thread.half, judgement) for thread, _, judgement in judged())

    assert {half for half, most in MOST_WRONG.items() if found[half, "wrong"] > most} == set()
    assert {half for half, least in LEAST_RIGHT.items() if found[half, "right"] < least} == set()
