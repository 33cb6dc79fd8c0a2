"""Two diagnoses held against each other: each measure with its gain, findings that are gone and new."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
import pytest

from commwatch.__main__ import main
from commwatch.diagnosis.document import Diagnosis, Measure
from commwatch.diagnosis.walk import diagnose
from diagnosis.exposed import known_of
from support.diagnoses import NOW, faulty, finding, healthy
from support.machines import host_copies, merged, probe

RATE = "all_reduce bus bandwidth, 64 MiB, 8 GPUs"
DELAY = "all_reduce latency, 8 B, 8 GPUs"


def measured(rate: float = 300e9, delay: float = 10e-6) -> dict[str, Any]:
    return {"measures": (Measure(RATE, rate, "bytes_per_second"), Measure(DELAY, delay, "seconds"))}


class Compared(NamedTuple):
    """The command's output for two diagnoses."""

    is_worse: bool
    told: dict[str, Any]
    text: str

    @property
    def words(self) -> dict[str, str]:
        """By measure whether it is better."""
        return {one["what"]: one["word"] for one in self.told["measures"]}


Compare: TypeAlias = Callable[[Diagnosis, Diagnosis], Compared]


@pytest.fixture
def compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Compare:
    """Compares two diagnoses by the command, as JSON and as text."""

    def compare(before: Diagnosis, after: Diagnosis) -> Compared:
        files = [
            saved(tmp_path, name, msgspec.json.encode(one)) for name, one in (("a.json", before), ("b.json", after))
        ]
        code = main(["diagnose", "--compare", *files, "--json"])
        told = json.loads(capsys.readouterr().out)
        assert main(["diagnose", "--compare", *files]) == code
        return Compared(code == 1, told, capsys.readouterr().out)

    return compare


def saved(folder: Path, name: str, content: bytes) -> str:
    (folder / name).write_bytes(content)
    return str(folder / name)


def test_measures_are_what_probes_gave_last() -> None:
    """With size and ranks; what has no current result is none."""
    numbers = merged(
        probe("all_reduce", 300e9, None, ranks=8), probe("old", None, None, ranks=8), host_copies({1: (24e9, 23e9)})
    )

    measures = diagnose(known_of(numbers), "quick").measures
    assert [(one.what, one.value) for one in measures if one.unit == "bytes_per_second"] == [
        ("all_reduce bus bandwidth, 64 MiB, 8 GPUs", 300e9),
        ("copy host to device, 64 MiB, GPU1", 24e9),
        ("copy device to host, 64 MiB, GPU1", 23e9),
    ]


@pytest.mark.parametrize(
    ("rate", "delay", "of_rate", "of_delay", "percent"),
    [
        (316e9, 9.4e-6, "better", "better", 5.3),
        (314e9, 9.6e-6, "same", "same", 4.7),
        (284e9, 10.6e-6, "worse", "worse", -5.3),
    ],
)
def test_more_bandwidth_and_less_latency_are_gains(
    rate: float, delay: float, of_rate: str, of_delay: str, percent: float, compared: Compare
) -> None:
    """From 5 % on; less is noise. Exit code 1 where something got worse."""
    found = compared(healthy(**measured()), healthy(time=NOW + 60, **measured(rate, delay)))

    assert found.told["schema"] == "commwatch-diagnosis-comparison/1"
    assert (found.words[RATE], found.words[DELAY], found.words["communication score"]) == (of_rate, of_delay, "same")
    assert {one["what"]: one["change_percent"] for one in found.told["measures"]}[RATE] == pytest.approx(
        percent, abs=0.1
    )
    assert found.is_worse == (of_rate == "worse")
    assert found.told["not_comparable"] == []


def test_findings_come_and_go(compared: Compare) -> None:
    """An info that is new makes nothing worse, a warning does."""
    before, after = faulty(**measured()), healthy(time=NOW + 60, **measured())

    gone = compared(before, after)
    cause = "PCIe link with fewer lanes: PCIe link of GPU1 (0000:18:00.0)"
    assert [one["words"] for one in gone.told["findings_gone"]] == [
        f"Slow collective: probe all_reduce; likeliest cause: {cause}",
        "The slot is narrow: probe all_reduce",
    ]
    assert (gone.told["findings_new"], gone.is_worse) == ([], False)
    assert compared(after, faulty(time=NOW + 90, score=after.score, **measured())).is_worse
    info = healthy(findings=(finding("info"),), time=NOW + 90, **measured())
    assert not compared(after, info).is_worse


def test_what_cannot_be_compared_is_said(compared: Compare) -> None:
    """Another node, the wrong order, nothing measured, a measure of one alone."""
    other = healthy(simulated="h100x8", time=NOW - 60, measures=())
    told = compared(healthy(**measured()), other).told

    assert [reason.partition(":")[0] for reason in told["not_comparable"]] == [
        "of another node", "the first is younger than the second", "after",
    ]  # fmt: skip
    assert set(told["only_before"]) == {RATE, DELAY}


def test_the_text_has_each_gain_in_percent(compared: Compare) -> None:
    """And counts what stayed the same."""
    text = compared(faulty(**measured(200e9)), healthy(time=NOW + 60, **measured())).text

    assert "before: Warning" in text
    assert "after:  OK" in text
    assert f"{RATE}  200 GB/s  300 GB/s  +50 %, better" in text
    assert "Findings that are gone" in text
    assert "1 measure changed by less than 5 %." in text
    assert "All pairs of GPU1" in text


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
