"""A pair matrix as a PNG or SVG file; the only module that imports matplotlib."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from textwrap import wrap
from typing import Any

from commwatch.errors import CommwatchError
from commwatch.views.heatmap.colours import colour, ink
from commwatch.views.heatmap.grid import LOW, NO_REFERENCE, View, scale_steps, scale_ticks

FORMATS = (".png", ".svg")

_CELL_INCHES = 0.62
_LINE_INCHES = 0.21
_LETTER_INCHES = 0.072
"""Mean width of a letter of the notes; those of the title are wider."""
_TITLE_INCHES = 0.125
_FONT_SHARE = 0.24
"""Height of the numbers by that of a cell: four digits and a point have room."""
_SMALLEST_FONT = 6.0
"""Points; below, numbers cannot be read, and colours alone are drawn."""
_LETTER_SHARE = 0.65
"""Width of a letter of a label by its height."""
_FRAME = "#D55E00"
"""Vermilion of Okabe and Ito: seen by all, and on every cell colour framed in white."""

_BLANK = (0xF2, 0xF2, 0xF2)
"""Ground of an end with itself, and hatched of what was not measured."""


class PictureError(CommwatchError):
    """The picture cannot be drawn or written."""


class BadPictureName(PictureError):
    """The name of the file says no format that can be drawn."""

    exit_code = 2


def check_picture(file: Path) -> None:
    """Say before anything is measured whether a picture can be drawn.

    Raises:
        BadPictureName: the name ends neither in .png nor in .svg.
        PictureError: matplotlib is not installed, or the folder is not there.
    """
    if file.suffix.lower() not in FORMATS:
        raise BadPictureName(f"--output {file}: expected a name that ends in .png or .svg")
    if importlib.util.find_spec("matplotlib") is None:
        raise PictureError("--output needs matplotlib, which is not installed: pip install 'commwatch[picture]'")
    if not file.absolute().parent.is_dir():
        raise PictureError(f"--output {file}: there is no folder {file.absolute().parent}")


def draw(view: View, file: Path) -> None:
    """Draw a matrix into a file, whole or not at all.

    Raises:
        PictureError: it cannot be written, or matplotlib is not installed.
    """
    check_picture(file)
    import matplotlib
    from matplotlib.figure import Figure  # without pyplot: no window system is looked for

    settings = {
        # The first comes with matplotlib: the same PNG on every machine; what shows an SVG may not have it.
        "font.family": ["DejaVu Sans", "sans-serif"],
        "svg.fonttype": "none",  # text stays text: searchable, and smaller
        "svg.hashsalt": "commwatch",
    }
    kind = file.suffix.lower().removeprefix(".")
    temporary = file.with_name(f".{file.name}.new")
    with matplotlib.rc_context(settings):
        figure = _figure(view, Figure)
        try:
            # Without the date the same matrix gives the same file.
            figure.savefig(temporary, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
            temporary.replace(file)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise PictureError(f"--output {file}: {error.strerror}") from error


def _figure(view: View, figure_type: Any) -> Any:
    """Title, facts, matrix with colour bar, notes; sizes in inches, from the top."""
    count = len(view.names)
    side = max(3.2, min(_CELL_INCHES * count, 12.0))
    title = wrap(view.title, 60)
    top = 0.3 * len(title) + _LINE_INCHES * (len(view.facts) + bool(view.simulated)) + 0.75
    left, right = 0.95, 1.45
    longest = max(map(len, (*view.facts, "Simulated node : none of this is real" + view.simulated)))
    width = max(left + side + right, 0.5 + _TITLE_INCHES * max(map(len, title)), 0.5 + _LETTER_INCHES * longest)
    notes = [line for note in view.notes for line in _folded(note, int((width - 0.7) / _LETTER_INCHES))]
    bottom = 0.55 + _LINE_INCHES * len(notes)
    height = top + side + bottom
    figure = figure_type(figsize=(width, height), facecolor="white")
    axes = figure.add_axes((left / width, bottom / height, side / width, side / height))
    _cells(view, axes, 72 * side / count)
    _colour_bar(view, figure, (left + side + 0.25) / width, bottom / height, 0.2 / width, side / height)

    def line(inches: float, text: str, indent: float = 0.0, **style: Any) -> None:
        figure.text((0.25 + indent) / width, 1 - inches / height, text, va="top", **style)

    at = 0.15
    for text in title:
        line(at, text, fontsize=13, fontweight="bold")
        at += 0.3
    if view.simulated:
        line(at, f"Simulated node {view.simulated}: none of this is real", fontsize=9, fontweight="bold", color=_FRAME)
        at += _LINE_INCHES
    for fact in view.facts:
        line(at, fact, fontsize=9, color="#333333")
        at += _LINE_INCHES
    for place, (mark, text) in enumerate(notes):
        at = top + side + 0.3 + _LINE_INCHES * place
        line(at, mark, fontsize=9, fontweight="bold")
        line(at, text, indent=0.2, fontsize=9)
    return figure


def _folded(note: str, columns: int) -> list[tuple[str, str]]:
    """The lines of a note, each with the mark before it; empty but for the first."""
    mark, _, text = note.partition("  ")
    return [(mark if place == 0 else "", one) for place, one in enumerate(wrap(text, columns))]


def _cells(view: View, axes: Any, cell_points: float) -> None:
    """One square for each pair: colour, number, and a frame with its letter where it is marked."""
    from matplotlib.patches import Rectangle

    count = len(view.names)
    size = min(9.0, _FONT_SHARE * cell_points)
    shows_numbers = size >= _SMALLEST_FONT
    for row in range(count):
        for column in range(count):
            pair = (row, column)
            number = view.numbers.get(pair)
            ground = _BLANK if number is None else colour(view.brightness(number))
            hatch = "////" if number is None and row != column else None
            axes.add_patch(
                Rectangle((column, row), 1, 1, facecolor=_hex(ground), edgecolor="white", linewidth=1, hatch=hatch)
            )
            text = view.text(pair)
            at = 0.64 if pair in view.marks and size < 9 else 0.54  # below its mark where the cell is small
            if text and (shows_numbers or text in ("-", NO_REFERENCE)):
                axes.text(column + 0.5, row + at, text, ha="center", va="center", fontsize=size,
                          color=_hex(ink(ground)))  # fmt: skip
            if pair in view.marks:
                _mark(axes, (row, column), view.marks[pair], _hex(ink(ground)), 0.75 * max(size, 6.0), cell_points)
    axes.set(xlim=(0, count), ylim=(count, 0), aspect="equal")
    places = [place + 0.5 for place in range(count)]
    label = min(9.0, 0.4 * cell_points)
    fits = _LETTER_SHARE * label * max(map(len, view.names)) < 0.9 * cell_points
    axes.set_xticks(places, view.names, fontsize=label, rotation=0 if fits else 90)
    axes.set_yticks(places, view.names, fontsize=label)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0)
    axes.set_xlabel("receives", fontsize=9)
    axes.set_ylabel("sends", fontsize=9)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _mark(axes: Any, pair: tuple[int, int], mark: str, shade: str, size: float, cell_points: float) -> None:
    """A frame inside the cell, whole for a suspect and dashed for a cell that is only low, and the mark in a corner."""
    from matplotlib.patches import Rectangle

    row, column = pair
    white, line = 3.6, 1.8
    inset = white / 2 / cell_points
    style = "--" if mark == LOW else "-"
    for edge, width, dashes in (("white", white, "-"), (_FRAME, line, style)):
        axes.add_patch(
            Rectangle((column + inset, row + inset), 1 - 2 * inset, 1 - 2 * inset, fill=False, edgecolor=edge,
                      linewidth=width, linestyle=dashes, gid=f"mark-{mark}-{row}-{column}")
        )  # fmt: skip
    at = 7 / cell_points
    axes.text(column + at, row + at * 0.8, mark, ha="left", va="top", fontsize=size, fontweight="bold", color=shade)


def _colour_bar(view: View, figure: Any, left: float, bottom: float, width: float, height: float) -> None:
    """The scale as a strip with its unit; the fast end is on top where more is better."""
    from matplotlib.patches import Rectangle

    axes = figure.add_axes((left, bottom, width, height))
    steps = 128
    for place, number in enumerate(scale_steps(view, steps)):
        shade = _hex(colour(view.brightness(number)))
        # Each strip reaches to the top, beneath the next: side by side, hairlines would show between them.
        axes.add_patch(Rectangle((0, place / steps), 1, 1 - place / steps, facecolor=shade, edgecolor="none"))
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[])
    ticks = scale_ticks(view)
    texts = [f"{number:.3g}" if number < 1000 else f"{number:.0f}" for number, _ in ticks]
    axes.set_yticks([place for _, place in ticks], texts, fontsize=9)
    axes.yaxis.tick_right()
    axes.yaxis.set_label_position("right")
    kind = ", logarithmic" if view.logarithmic else ""
    axes.set_ylabel(f"{view.unit}{kind}: the darker, the slower", fontsize=9)


def _hex(shade: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*shade)
