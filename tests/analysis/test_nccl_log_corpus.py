"""Excerpts of job logs as each NCCL era writes them, each with the cause that an expert names."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from commwatch.jobs.logs.categories import SIDES
from commwatch.node.run import Collected
from support.fed_daemon import FedDaemon
from support.logs import LogFolder, causes
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
    return next(iter(causes(text)), NOTHING)


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """What the daemon blames for what it reads within a minute."""
    (tmp_path / "logs").mkdir()
    folder, daemon = LogFolder(tmp_path / "logs"), FedDaemon(tmp_path / "state", monkeypatch)
    folder.start()
    folder.run()

    def blamed(text: str) -> str:
        name = f"{len(list(folder.folder.iterdir()))}.log"
        folder.write(text + "\n", name)
        os.utime(folder.folder / name, (folder.began + folder.now,) * 2)
        found = [folder.run().log_errors, []]
        lines = [daemon.feed("nccl_logs", Collected({}, [], 0.0, log_errors=one), 60.0) for one in found]
        return next((line["category"] for line in lines[1] if "category" in line), NOTHING)

    return blamed


def wrong_of(era: str, blame: Callable[[str], str]) -> list[tuple[str, str, str]]:
    """In 95 of 100 excerpts at least the first cause is right; those that are wrong are named."""
    cases = [(expected, blame(text), text[:200]) for expected, text in excerpts(era)]
    wrong = [case for case in cases if case[0] != case[1]]
    return wrong if len(wrong) > (1 - LEAST_RIGHT) * len(cases) else []


@in_one_pass("era", ERAS)
def test_a_command_names_the_first_cause(era: str) -> None:
    assert wrong_of(era, offline) == []


@in_one_pass("era", ERAS)
def test_the_daemon_names_the_first_cause(era: str, live: Callable[[str], str]) -> None:
    """Also behind the text of a launcher before each line."""

    def launched(text: str) -> str:
        return live("\n".join(f"3: {line}" for line in text.splitlines()))

    assert wrong_of(era, launched) == []


def test_there_are_enough_excerpts_of_every_kind() -> None:
    """Four eras with 40 excerpts or more each, and each category of a failure as a cause in one of them."""
    assert len(ERAS) == 4
    for era in ERAS:
        assert len(excerpts(era)) >= 40, era
    seen = {expected for era in ERAS for expected, _ in excerpts(era)}
    assert seen >= set(SIDES) - {"ib_flush", "other", "waiting"} | {NOTHING}


@in_one_pass("era", ERAS)
def test_lines_end_as_they_may(era: str) -> None:
    """Line feeds, and carriage returns with them."""
    for _, text in excerpts(era):
        assert offline("\r\n".join(text.splitlines())) == offline(text)
