"""Excerpts of public threads, half of them apart from the rules, are answered no worse than before."""

from __future__ import annotations

import re
from collections import Counter

from benchmarks.public_logs import UNSETTLED, judged, threads

MOST_WRONG = {"A": 0, "B": 0, UNSETTLED: 8}
"""Of threads without a settled cause most answers only say what the line says, and count as wrong."""
LEAST_RIGHT = {"A": 24, "B": 21}


def test_no_more_answers_are_wrong() -> None:
    """``python -m benchmarks.public_logs --show wrong`` prints them."""
    found = Counter((thread.half, judgement) for thread, _, judgement in judged())

    assert {half for half, most in MOST_WRONG.items() if found[half, "wrong"] > most} == set()
    assert {half for half, least in LEAST_RIGHT.items() if found[half, "right"] < least} == set()


PRIVATE = re.compile(
    r"(?<![\d.])(?!127\.|192\.0\.2\.)\d{1,3}(?:\.\d{1,3}){3}(?![\d.])|/(?:home|Users|root)/|\w@[\w-]|[0-9a-f]{2}(?::[0-9a-f]{2}){5}"
    r"|\b(?:gh[pousr]|hf|sk)_\w{8}|(?i:password|token|secret)[=:]"
)
"""Addresses but those for documents, homes, people and secrets."""


def test_an_excerpt_is_short_and_names_no_place_or_person() -> None:
    """At most 12 lines of what programs wrote."""
    assert [thread.address for thread in threads() if len(thread.text.splitlines()) > 12] == []
    assert [thread.address for thread in threads() if PRIVATE.search(thread.text)] == []
