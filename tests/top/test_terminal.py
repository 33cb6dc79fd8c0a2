"""commwatch top on a real terminal: what it draws, what it obeys, and how it leaves the terminal behind."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.daemon import command, environment
from support.waiting import PATIENCE_SECONDS
from top.documents import made
from top.session import answering, session

GPUS = tuple(("gpu_state", (str(index), f"0000:{index:02x}:00.0"), 0.0) for index in range(40))


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """State directory of a daemon with more GPUs than fit a screen."""
    with answering(tmp_path / "state", made(*GPUS)):
        yield tmp_path / "state"


def test_it_draws_follows_the_window_and_obeys_its_keys(state: Path) -> None:
    """Scrolls, pauses, helps, and quits with the terminal as it was."""
    with session(80, 24, "--path.state", str(state), "--interval", "500ms") as top:
        lines = top.shows("1-22 of")
        assert len(lines) == 24
        assert "GPU  State" in "\n".join(lines)

        top.resize(100, 10)
        assert len(top.shows("1-8 of")) == 10

        top.press("jj\x1b[B")
        top.shows("4-11 of")
        top.press("\x1b[6~k")
        top.shows("11-18 of")
        top.press("G")
        top.shows("Collectors")
        top.press("g")
        top.shows("1-8 of")

        top.press("p")
        top.shows("PAUSED")
        paused = len(top.written)
        top.read(1.5)
        assert len(top.written) == paused
        top.press("p?")
        top.shows("q             quit")
        top.press("\x1b")
        top.shows("1-8 of")
        top.press("?")
        top.shows("q             quit")

        top.press("q")
        assert top.end() == 0
        assert top.is_restored


WIDE = made(
    ("ethernet_carrier", ("a" * 52,), 1.0),
    ("gpu_info", ("0", "0000:00:00.0", "u", "s", "b" * 200, "h"), 1.0),
    *GPUS[:2],
)
"""A table that takes 80 columns to the last one, and a word that is longer than a line."""


def test_no_column_of_80_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The screen shows what --once prints, each line to its last sign in the last column."""
    monkeypatch.setenv("COLUMNS", "80")
    with answering(tmp_path / "state", WIDE):
        printed = command("top", "--once", "--path.state", str(tmp_path / "state")).stdout.splitlines()
        with session(80, 24, "--path.state", str(tmp_path / "state")) as top:
            lines = top.until(lambda lines: "1-22 of" in lines[-1])

    assert [len(line) for line in lines if line.endswith(("UTC", "  tx/rx  Errors"))] == [80, 80]
    for seen, whole in zip(lines[:-1], printed, strict=False):
        assert _without_numbers(seen) == _without_numbers(whole[:80].rstrip())
    assert re.fullmatch(r"q quit  j/k scroll  p pause  \? help +1-22 of \d+", lines[-1])
    assert len(lines[-1]) == 79


def test_a_sign_that_the_terminal_lacks_takes_one_column(tmp_path: Path) -> None:
    """A question mark in its place; what is behind it does not move."""
    said = made(("ethernet_carrier", ("\u00e4" * 52,), 1.0))
    own = ("--path.state", str(tmp_path / "state"))
    with answering(tmp_path / "state", said), session(80, 24, *own, PYTHONIOENCODING="ascii") as top:
        top.shows(f"{'?' * 52}  up    -      -      -")


def _without_numbers(line: str) -> str:
    """Times differ between one page and the next, and the age of the last look in its length too."""
    return re.sub(r"\d", "#", re.sub(r"(?<=last look is )[\w. ]+ old", "# old", line))


@pytest.mark.parametrize(("columns", "rows"), [(1, 1), (20, 5), (79, 24), (132, 50)])
def test_a_window_of_any_size_is_filled_and_no_more(columns: int, rows: int, tmp_path: Path) -> None:
    """Its first line is there, a line that is too wide ends at the edge, and none moves the others up."""
    with answering(tmp_path / "state", WIDE), session(columns, rows, "--path.state", str(tmp_path / "state")) as top:
        top.until(lambda lines: lines[0].startswith("commwatch top"[:columns]))
        top.press("G")
        lines = top.until(lambda lines: rows == 1 or bool(lines[-1]))

    assert lines[0].startswith("commwatch top"[:columns])
    assert len(lines) == rows
    assert rows == 1 or lines[-1].startswith("q quit  j/k scroll"[:columns])


@pytest.mark.parametrize(
    ("ending", "code"), [("\x03", 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=["ctrl-c", "term", "hangup"]
)
def test_every_ending_leaves_the_terminal_as_it_was(state: Path, ending: str | signal.Signals, code: int) -> None:
    """With the exit code of a program that the signal has ended."""
    with session(80, 24, "--path.state", str(state)) as top:
        top.shows("GPUs")
        if isinstance(ending, str):
            top.press(ending)
        else:
            top.process.send_signal(ending)

        assert top.end() == code
        assert top.is_restored


def test_a_window_that_is_closed_ends_it(state: Path) -> None:
    """With the exit code of a program that the hangup has ended."""
    with session(80, 24, "--path.state", str(state)) as top:
        top.shows("GPUs")
        top.vanish()

        assert top.process.wait(PATIENCE_SECONDS) == 129


def test_a_defect_ends_it_with_the_terminal_as_it_was(state: Path, tmp_path: Path) -> None:
    """The error stands on the screen of the shell, not on the one that has gone."""
    (tmp_path / "sitecustomize.py").write_text(
        "import commwatch.views.top.screen as screen\n"
        "screen.collector_lines = lambda *given: 1 / 0\n"
    )  # fmt: skip
    path = f"{tmp_path}{os.pathsep}{environment()['PYTHONPATH']}"
    with session(80, 24, "--path.state", str(state), PYTHONPATH=path) as top:
        assert top.end() == 1
        assert top.is_restored
        assert "ZeroDivisionError" in top.written.rpartition("\x1b[?1049l")[2]


def test_it_says_that_the_daemon_is_gone_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    """From a start without one, over an answer, to its end and back."""
    state = tmp_path / "state"
    with session(80, 24, "--path.state", str(state), "--interval", "500ms") as top:
        top.shows("NO ANSWER for")
        top.shows("no commwatch daemon runs")
        with answering(state, made(*GPUS)):
            top.until(lambda lines: any("GPUs" in line for line in lines) and "NO ANSWER" not in lines[1])
        lines = top.shows("NO ANSWER for")
        assert any("below is the last answer" in line for line in lines)
        assert any("GPUs" in line for line in lines)
        with answering(state, made(*GPUS)):
            top.until(lambda lines: "NO ANSWER" not in lines[1])


def test_the_shell_gets_its_terminal_while_it_is_stopped(state: Path) -> None:
    """Ctrl-Z gives it back, fg takes it again."""
    with session(80, 24, "--path.state", str(state)) as top:
        top.shows("GPUs")
        top.press("\x1a")
        os.waitpid(top.process.pid, os.WUNTRACED)
        top.read()
        assert top.is_restored

        before = len(top.written)
        top.process.send_signal(signal.SIGCONT)
        top.shows("GPUs")
        assert "\x1b[?1049h" in top.written[before:]
        top.press("q")
        assert top.end() == 0
        assert top.is_restored


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_colours_are_left_out_where_no_color_says_so(state: Path, no_color: str, coloured: bool) -> None:
    """No style at all then; the words are the same."""
    with session(80, 24, "--path.state", str(state), NO_COLOR=no_color) as top:
        top.shows("GPUs")

        assert ("\x1b[1m" in top.written) is coloured
        assert ("\x1b[0m" in top.written) is coloured


def test_a_dumb_terminal_gets_plain_pages(state: Path) -> None:
    """One after the other, without a single escape sequence, until Ctrl-C."""
    with session(80, 24, "--path.state", str(state), "--interval", "500ms", TERM="dumb") as top:
        while top.written.count("commwatch top  ") < 2:
            top.read(0.5)
        top.press("\x03")

        assert top.end() == 130
        assert "\x1b" not in top.written
