"""Two diagnoses held against each other: each measure with its gain, findings that are gone and new."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from commwatch.__main__ import main
from commwatch.diagnosis.compare import DiagnosisComparison, compared, comparison_lines
from commwatch.diagnosis.measures import Measure, measures_of
from commwatch.lines import plain
from diagnosis.measured import facts, host_copies, probe
from support.diagnoses import NOW, faulty, finding, healthy

RATE = "all_reduce bus bandwidth, 64 MiB, 8 GPUs"
DELAY = "all_reduce latency, 8 B, 8 GPUs"


def measured(rate: float = 300e9, delay: float = 10e-6) -> dict[str, Any]:
    return {"measures": (Measure(RATE, rate, "bytes_per_second"), Measure(DELAY, delay, "seconds"))}


def words(told: DiagnosisComparison) -> dict[str, str]:
    return {one.what: one.word for one in told.measures}


def test_measures_are_what_probes_gave_last() -> None:
    """With size and ranks; what has no current result is none."""
    known = facts(
        probe("all_reduce", 300e9, None, ranks=8), probe("old", None, None, ranks=8), host_copies({1: (24e9, 23e9)})
    )

    assert [(one.what, one.value) for one in measures_of(known) if one.unit == "bytes_per_second"] == [
        ("all_reduce bus bandwidth, 64 MiB, 8 GPUs", 300e9),
        ("copy host to device, 64 MiB, GPU1", 24e9),
        ("copy device to host, 64 MiB, GPU1", 23e9),
    ]


@pytest.mark.parametrize(
    ("rate", "delay", "of_rate", "of_delay"),
    [
        (316e9, 9.4e-6, "better", "better"),
        (314e9, 9.6e-6, "same", "same"),
        (284e9, 10.6e-6, "worse", "worse"),
    ],
)
def test_more_bandwidth_and_less_latency_are_gains(rate: float, delay: float, of_rate: str, of_delay: str) -> None:
    """From 5 % on; less is noise."""
    told = compared(healthy(**measured()), healthy(time=NOW + 60, **measured(rate, delay)))

    assert (words(told)[RATE], words(told)[DELAY], words(told)["communication score"]) == (of_rate, of_delay, "same")
    assert told.is_worse == (of_rate == "worse")
    assert told.not_comparable == ()


def test_findings_come_and_go() -> None:
    """An info that is new makes nothing worse, a warning does."""
    before, after = faulty(**measured()), healthy(time=NOW + 60, **measured())

    gone = compared(before, after)
    cause = "PCIe link with fewer lanes: PCIe link of GPU1 (0000:18:00.0)"
    assert [one.words for one in gone.findings_gone] == [
        f"Slow collective: probe all_reduce; likeliest cause: {cause}",
        "The slot is narrow: probe all_reduce",
    ]
    assert (gone.findings_new, gone.is_worse) == ((), False)
    assert compared(after, faulty(time=NOW + 90, score=after.score, **measured())).is_worse
    info = healthy(findings=(finding("info"),), time=NOW + 90, **measured())
    assert not compared(after, info).is_worse


def test_what_cannot_be_compared_is_said() -> None:
    """Another node, the wrong order, nothing measured, a measure of one alone."""
    other = healthy(simulated="h100x8", time=NOW - 60, measures=())
    told = compared(healthy(**measured()), other)

    assert [reason.partition(":")[0] for reason in told.not_comparable] == [
        "of another node", "the first is younger than the second", "after",
    ]  # fmt: skip
    assert set(told.only_before) == {RATE, DELAY}


def test_the_text_has_each_gain_in_percent() -> None:
    """And counts what stayed the same."""
    told = compared(faulty(**measured(200e9)), healthy(time=NOW + 60, **measured()))
    text = "\n".join(plain(line) for line in comparison_lines(told))

    assert "before: Warning" in text
    assert "after:  OK" in text
    assert f"{RATE}  200 GB/s  300 GB/s  +50 %, better" in text
    assert "Findings that are gone" in text
    assert "1 measure changed by less than 5 %." in text
    assert "All pairs of GPU1" in text


def saved(folder: Path, name: str, content: bytes) -> str:
    (folder / name).write_bytes(content)
    return str(folder / name)


def test_the_command_prints_text_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 where something got worse."""
    before = saved(tmp_path, "before.json", msgspec.json.encode(healthy(**measured())))
    after = saved(tmp_path, "after.json", msgspec.json.encode(healthy(time=NOW + 60, **measured(100e9))))

    assert main(["diagnose", "--compare", before, before]) == 0
    assert "changed by less than 5 %" in capsys.readouterr().out
    assert main(["diagnose", "--compare", before, after, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["measures"][0]["word"]) == ("commwatch-diagnosis-comparison/1", "worse")
    assert told["measures"][0]["change_percent"] == pytest.approx(-66.7, abs=0.1)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is no diagnosis"),
        (b"{}", "missing required field `version`"),
        (b"\xff[", "is no diagnosis"),
        (b'{"schema": "commwatch-diagnosis/2"}', "expected commwatch-diagnosis/1"),
        (None, "No such file"),
    ],
)
def test_a_file_that_is_no_diagnosis_is_one_clear_line(
    content: bytes | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the name of the file and what would be right."""
    good = saved(tmp_path, "good.json", msgspec.json.encode(healthy()))
    bad = str(tmp_path / "none.json") if content is None else saved(tmp_path, "bad.json", content)

    assert main(["diagnose", "--compare", good, bad]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert bad in line
    assert words in line
    assert main(["diagnose", "--compare", good, good, "--full-scan"]) == 2
