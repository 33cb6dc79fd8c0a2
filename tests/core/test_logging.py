"""The log: its formats, the order of its keys, and that all records take the same path."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
import structlog

from commwatch.config.settings import Log
from commwatch.service.log import configure_logging
from support.command_line import Terminal
from support.passes import in_one_pass

JSON, CONSOLE = Log(format="json"), Log(format="console")


@pytest.fixture(autouse=True)
def no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment is that of no service."""
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)


def logged(settings: Log, say: Callable[[], object], stream: io.StringIO | None = None) -> str:
    """What the log holds after something was said."""
    stream = stream or io.StringIO()
    configure_logging(settings, stream)
    say()
    return stream.getvalue()


def record(settings: Log, say: Callable[[], object]) -> dict[str, Any]:
    """The one JSON record of what was said."""
    (line,) = logged(settings, say).splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def ours(level: str = "info", **fields: object) -> None:
    getattr(structlog.get_logger("commwatch.test"), level)("it happened", **fields)


def test_a_json_record_begins_with_its_four_keys() -> None:
    """Time, level, message and logger come first and in this order, then the fields as they were given."""
    found = record(JSON, lambda: ours(zeta=1, alpha="ä\n", logger_field=None))

    assert list(found) == ["time", "level", "msg", "logger", "zeta", "alpha", "logger_field"]
    assert [found[key] for key in list(found)[1:]] == ["info", "it happened", "commwatch.test", 1, "ä\n", None]


def test_the_time_is_utc() -> None:
    """Records of nodes in different places can be put side by side."""
    before = datetime.now(timezone.utc)
    text = record(JSON, ours)["time"]

    assert text.endswith("Z")
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    assert before <= moment <= datetime.now(timezone.utc)


def test_records_of_third_parties_take_the_same_path() -> None:
    """A library's record has the same keys; its arguments are filled in, its extra fields kept."""
    found = record(JSON, lambda: logging.getLogger("asyncio").warning("took %.1f s", 2.5, extra={"task": "x"}))

    assert list(found) == ["time", "level", "msg", "logger", "task"]
    assert [found[key] for key in list(found)[1:]] == ["warning", "took 2.5 s", "asyncio", "x"]


def test_an_error_carries_its_traceback_in_one_line() -> None:
    """A record stays one line, whatever it tells; ours and a library's alike."""

    def fail(say: Callable[[], object]) -> Callable[[], object]:
        def run() -> None:
            try:
                raise RuntimeError("broken\nhere")
            except RuntimeError:
                say()

        return run

    for say in (lambda: ours("error", exc_info=True), lambda: logging.getLogger("x").exception("it happened")):
        found = record(JSON, fail(say))
        assert (found["level"], found["msg"]) == ("error", "it happened")
        assert found["exception"].startswith("Traceback")
        assert found["exception"].endswith("RuntimeError: broken\nhere")


def test_a_field_that_json_does_not_know_is_written_somehow() -> None:
    """A path or a set in a field must not cost the record."""
    found = record(JSON, lambda: ours(value={1}, kind=ValueError("x")))

    assert (found["value"], found["kind"]) == ("{1}", "ValueError('x')")


@in_one_pass(
    "level, kept",
    [("debug", ["debug", "info", "warning", "error"]), ("info", ["info", "warning", "error"]),
     ("warning", ["warning", "error"]), ("error", ["error"])],
)  # fmt: skip
def test_the_level_holds_for_all_records(level: str, kept: list[str]) -> None:
    """What is below the level is not written, whoever says it."""

    def say() -> None:
        for one in ("debug", "info", "warning", "error"):
            ours(one)
            getattr(logging.getLogger("library"), one)("it happened")

    settings = Log(level=level, format="json")  # type: ignore[arg-type]  # one of the four
    lines = [json.loads(line) for line in logged(settings, say).splitlines()]

    assert [line["level"] for line in lines] == [one for one in kept for _ in range(2)]


def test_auto_is_json_in_a_pipe_and_readable_on_a_terminal() -> None:
    """Machines get JSON, people do not."""
    auto = Log()

    assert json.loads(logged(auto, ours))["msg"] == "it happened"
    shown = logged(auto, lambda: ours(device="eth0"), Terminal())
    assert not shown.startswith("{")
    assert "it happened" in shown


def test_a_named_format_holds_everywhere() -> None:
    """JSON on a terminal and console in a pipe, where they are asked for."""
    assert logged(JSON, ours, Terminal()).startswith("{")
    shown = logged(CONSOLE, lambda: ours(device="eth0"))
    assert all(text in shown for text in ("info", "it happened", "commwatch.test", "device=eth0"))
    assert not shown.startswith("{")
    assert "\x1b" not in shown


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR is respected."""
    assert "\x1b[" in logged(CONSOLE, ours, Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in logged(CONSOLE, ours, Terminal())


@pytest.mark.parametrize(
    ("level", "prefix"), [("debug", "<7>"), ("info", "<6>"), ("warning", "<4>"), ("error", "<3>"), ("critical", "<2>")]
)
@pytest.mark.parametrize("settings", [Log(level="debug", format="json"), Log(level="debug", format="console")])
def test_the_journal_is_told_the_level(monkeypatch: pytest.MonkeyPatch, settings: Log, level: str, prefix: str) -> None:
    """`journalctl -p warning` finds what it should, from us and from libraries."""
    monkeypatch.setenv("JOURNAL_STREAM", "8:4711")

    for say in (lambda: ours(level), lambda: getattr(logging.getLogger("library"), level)("it happened")):
        assert logged(settings, say).startswith(prefix)


def test_outside_of_the_journal_no_level_is_prefixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that was opened inside a service is no journal."""
    assert logged(JSON, ours).startswith("{")
    monkeypatch.setenv("JOURNAL_STREAM", "8:4711")
    assert logged(JSON, ours, Terminal()).startswith("{")


def test_records_go_to_standard_error_as_it_is_at_the_call(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard error that was replaced after the import gets them."""
    configure_logging(JSON)
    ours()

    assert json.loads(capsys.readouterr().err)["msg"] == "it happened"


def test_a_new_configuration_replaces_the_old_one() -> None:
    """After a reload each record is written once, to the new stream, at the new level."""
    old = io.StringIO()
    configure_logging(JSON, old)

    def say() -> None:
        ours("info")
        ours("warning")

    text = logged(Log(level="warning", format="json"), say)

    assert old.getvalue() == ""
    assert len(text.splitlines()) == 1


def test_a_line_of_a_job_does_no_harm_on_a_terminal() -> None:
    """What it holds is text there, whoever wrote it; an exception keeps its lines."""
    line = logged(CONSOLE, lambda: ours(text="a\x1b[2J\rb", count=3))

    assert "a?[2J?b" in line
    assert "count" in line
    assert "\x1b" not in line
