"""What ``commwatch probe`` prints: the table, the sentences below it, and the matrix of pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import fill

from commwatch.lines import WIDTH
from commwatch.probes.by_hand.answer import Answer, Document, notes_of
from commwatch.probes.by_hand.sweep import sweep_words
from commwatch.probes.by_hand.trial import ROUNDS, TrialDocument
from commwatch.probes.plan import Measured
from commwatch.views.heatmap.matrix_view import view_of
from commwatch.views.heatmap.text import heatmap_lines
from commwatch.views.probe_table import (
    RIGHT,
    SWEEP_COLUMNS,
    TRIAL_COLUMNS,
    columns_of,
    sweep_rows,
    table_rows,
    trial_rows,
)
from commwatch.views.terminal import print_lines, print_table, screen


def print_answers(document: Document, low_ratio: float) -> None:
    """Print the table of all probes, their sentences, and the matrix of those over pairs.

    Args:
        document: the answers.
        low_ratio: a bandwidth below this share of the expected one is marked.
    """
    coloured, width = screen()
    folded = min(WIDTH, width or WIDTH)
    _print_head(document)
    print_table("Probes", columns_of(document.probes), table_rows(document.probes, low_ratio), right=RIGHT)
    notes = list(_notes(document.probes))
    if notes:
        print()
    for note in notes:
        print(fill(note, folded, subsequent_indent="  ", break_on_hyphens=False))
    for answer in document.probes:
        if answer.pairs is not None:
            print()
            view = view_of(answer.pairs, "bandwidth", relative=False, low_ratio=low_ratio)
            lines = list(heatmap_lines(view, coloured=coloured, width=width))
            # What is simulated has been said above.
            print_lines(lines[2:] if view.simulated else lines)


def print_sweep(document: Document) -> None:
    """Print a table for each collective, as nccl-tests has it: size, time, algorithm and bus bandwidth."""
    _print_head(document)
    for answer in document.probes:
        print(f"{answer.probe} ×{answer.ranks}: {answer.verdict}")
        if answer.rows:
            print_table("", SWEEP_COLUMNS, sweep_rows(answer), right=frozenset(range(len(SWEEP_COLUMNS))))
        for note in dict.fromkeys(filter(None, (sweep_words(answer), *notes_of(answer)))):
            print(fill(note, WIDTH, subsequent_indent="  ", break_on_hyphens=False))
        print()


def print_trial(document: TrialDocument) -> None:
    """Print each step without and with the settings, and what they gain."""
    _print_head(document)
    settings = " ".join(f"{name}={value}" for name, value in document.trial.settings.items())
    print(f"Without and with {settings}, medians of {ROUNDS} rounds")
    if document.trial.gains:
        print_table("", TRIAL_COLUMNS, trial_rows(document.trial), right=frozenset({1, 2, 3, 4}))
    notes = list(_notes(document.probes))
    if document.trial.gains and not document.kept:
        notes.append("not kept for commwatch diagnose --settings: the state directory cannot be written")
    for note in notes:
        print(fill(note, WIDTH, subsequent_indent="  ", break_on_hyphens=False))


def _print_head(document: Document | TrialDocument) -> None:
    """What the results were measured with, each combination once; nothing for what is simulated."""
    if document.simulated_node:
        print(f"Simulated node {document.simulated_node}: none of this is real.\n")
    found: dict[str, None] = {}
    for answer in document.probes:
        if isinstance(answer.result, Measured) and answer.backend != "simulated":
            parts = [("NCCL", answer.result.nccl_version), ("torch", answer.result.torch_version)]
            known = [f"{name} {version}" for name, version in parts if version]
            found[f"Measured with {', '.join((answer.backend, *known))}."] = None
    for line in found:
        print(line)


def _notes(answers: Sequence[Answer]) -> Iterator[str]:
    """The sentences with the names of the probes that they are about: what several share is said once."""
    about: dict[str, dict[str, None]] = {}
    for answer in answers:
        for note in notes_of(answer):
            about.setdefault(note, {})[answer.probe] = None
    for note, names in about.items():
        yield f"{', '.join(names)}: {note}"
