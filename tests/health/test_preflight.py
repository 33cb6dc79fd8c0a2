"""`commwatch healthcheck --require`: the preflight before a job, and what it can never do to a cluster."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from commwatch.__main__ import main
from commwatch.findings.api_documents import SnapshotDocument, metric_records
from commwatch.findings.health import Asked, Health, Preflight, judge, with_preflight
from commwatch.findings.verdict import Word
from health.reports import NOW, Node, document, fault, made_node, report
from support.machines import NodeNumbers, gpus, merged, probe
from support.pages import snapshot_of
from support.waiting import PATIENCE_SECONDS

Output = pytest.CaptureFixture[str]

FAST = merged(gpus(8, "NVIDIA H100 80GB HBM3"), probe("all_reduce", 313e9, 315e9, ranks=8))
SLOW = merged(gpus(8, "NVIDIA A10G"), probe("all_reduce", 0.82e9, 12e9, ranks=8))


def snapshot(numbers: NodeNumbers, age: float) -> dict[str, Any]:
    """What the daemon answers when it is asked for its metrics; the last results are so many seconds old."""
    now = time.time()
    series = {
        (metric, labels): now - age if metric.endswith("_timestamp_seconds") else value
        for metric, some in numbers.items() for labels, value in some.items()
    }  # fmt: skip
    records = metric_records(snapshot_of(series))
    answer = SnapshotDocument(version="1", time=now, simulated=None, maintenance=None, metrics=records)
    return msgspec.json.decode(msgspec.json.encode(answer), type=dict[str, Any])


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """From which a profile is asked for."""
    made = made_node(tmp_path, monkeypatch, require="7b")
    for seconds in ("DAEMON_SECONDS", "SNAPSHOT_SECONDS"):  # how soon this process answers is the machine's affair
        monkeypatch.setattr(f"commwatch.diagnosis.health.check.{seconds}", PATIENCE_SECONDS)
    return made


def test_a_node_that_suits(node: Node, capsys: Output) -> None:
    """0, with the step to expect; the JSON has every check."""
    with node.saying(findings=document(), snapshot=snapshot(FAST, 240)):
        assert node.check() == 0
        assert capsys.readouterr().out.startswith("OK: 7b: a step of 435 ms to 513 ms over 8 GPUs with ZeRO-1; GPUs")
        assert node.check("--for", "lora") == 0
        assert capsys.readouterr().out.startswith("OK: 7b: a step of 291 ms to 292 ms over 8 GPUs, 291 ms on one alone")
        assert node.check("--json") == 0

    told = json.loads(capsys.readouterr().out)
    assert (told["preflight"]["profile"], told["preflight"]["verdict"]) == ("7b", "OK")
    assert told["preflight"]["purpose"] == "training"
    assert {check["verdict"] for check in told["preflight"]["checks"]} <= {"passed", "does not apply", "not measured"}
    assert node.counts == {}


def test_a_node_that_does_not_suit_is_refused(node: Node, capsys: Output) -> None:
    """1, with the reason and the step to expect, also for a step of one's own."""
    with node.saying(findings=document(), snapshot=snapshot(SLOW, 240)):
        assert node.check() == 1
        assert "slower than this hardware should be" in capsys.readouterr().out
        assert node.check("--step-time", "100ms") == 1

    assert capsys.readouterr().out.startswith(
        "Warning: 7b: a step of 44.8 s to 44.9 s over 8 GPUs with FSDP, 100 ms on one alone; GPUs wait 100 % of it"
    )


def test_a_finding_is_refused_as_well(node: Node, capsys: Output) -> None:
    """Whatever the results say: the job would run into it."""
    with node.saying(findings=document("nvlink_down"), snapshot=snapshot(FAST, 240)):
        assert node.check() == 1

    assert capsys.readouterr().out.startswith(
        "Critical: NVLink is down: GPU0 link 3 (0000:17:00.0/3); preflight, OK: 7b"
    )


def test_an_old_result_is_unknown_and_says_how_old(node: Node, capsys: Output) -> None:
    """2, counted; --fail-closed makes it 1. An hour is the default."""
    with node.saying(findings=document(), snapshot=snapshot(SLOW, 3700)):
        assert node.check() == 2
        assert capsys.readouterr().out == "Unknown: 7b: the last all_reduce result is 1 h 2 min old, more than 1 h\n"
        assert node.check("--fail-closed") == 1
        assert node.check("--max-age", "2h") == 1
    assert "Warning" in capsys.readouterr().out
    assert node.counts == {"no_result": 2}


def test_max_age_is_that_of_results_and_not_of_the_look(node: Node, capsys: Output) -> None:
    """A daemon that looked two minutes ago is stale, however old a result may be."""
    with node.saying(findings=document(age=120.0), snapshot=snapshot(FAST, 240)):
        assert node.check("--max-age", "1h") == 2
    assert "the daemon's last look is" in capsys.readouterr().out
    with node.saying(findings=document(), snapshot=snapshot(FAST, 240)):
        assert node.check("--max-age", "30s") == 2
    assert "the last all_reduce result is 4 min old, more than 30 s" in capsys.readouterr().out


def test_for_slurm_a_refusal_is_told_and_changes_nothing(node: Node, capsys: Output) -> None:
    """A prolog that fails drains the node, which suits other jobs."""
    with node.saying(findings=document(), snapshot=snapshot(SLOW, 240)):
        assert node.check("--slurm", "--drain") == 0
        assert node.check("--slurm", "--fail-closed") == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "OK: no warning or critical finding; nothing on the drain list; preflight, Warning: 7b: a step of "
    )
    with node.saying(findings=document(), snapshot=snapshot(SLOW, 7200)):
        assert node.check("--slurm", "--fail-closed") == 0
    assert node.slurm.updates == []
    assert node.counts == {}


def test_for_slurm_the_drain_list_counts_as_ever(node: Node, capsys: Output) -> None:
    """Also where the preflight cannot be made; Slurm is told the fault, and not the preflight."""
    with node.saying(findings=document("nvlink_down")):
        assert node.check("--slurm", "--drain") == 1

    assert "preflight, Unknown: 7b: the daemon of" in capsys.readouterr().out
    [update] = node.slurm.updates
    assert "7b" not in update


@pytest.mark.parametrize(
    ("about", "because"),
    [
        ({"simulated": "h100x8"}, "simulated"),
        ({"maintenance": "driver"}, "paused"),
        ({"looked_at": None}, "not_looked_yet"),
    ],
)
def test_what_says_nothing_of_the_node_stays_unknown(
    node: Node, capsys: Output, about: dict[str, Any], because: str
) -> None:
    """The line still says what the preflight would."""
    with node.saying(findings=document(**about), snapshot=snapshot(SLOW, 240)):
        assert node.check() == 2

    assert "preflight, Warning: 7b: a step of" in capsys.readouterr().out
    assert node.counts == {because: 1}


def test_a_daemon_that_does_not_give_its_metrics(node: Node, capsys: Output) -> None:
    """Unknown, whether it closes the connection or says something else."""
    for answer in (None, {"hello": 1}, {"error": "no"}):
        with node.saying(findings=document(), snapshot=answer):
            assert node.check() == 2
        assert capsys.readouterr().out.startswith("Unknown: 7b: ")


def test_without_a_daemon(node: Node, capsys: Output) -> None:
    """As without --require."""
    assert node.check() == 2
    assert capsys.readouterr().out.startswith("Unknown: no commwatch daemon runs")


def test_wrong_use_never_drains(node: Node) -> None:
    """A profile that is none, or work without a profile: 2, and 0 with --slurm."""
    assert main(["healthcheck", "--path.state", str(node.state), "--for", "lora"]) == 2
    assert main(["healthcheck", "--path.state", str(node.state), "--require", "8b"]) == 2
    assert main(["healthcheck", "--path.state", str(node.state), "--require", "8b", "--slurm", "--drain"]) == 0
    assert node.slurm.updates == []


def of(verdict: Word, *, failing_rules: tuple[str, ...] = (), found: bool = False) -> Health:
    """A preflight of this verdict beside a report."""
    asked = Asked(NOW, 60.0)
    faults = (fault("nvlink_down"),) if found else ()
    return with_preflight(
        judge(report(*faults, failing_rules=failing_rules), asked), Preflight(verdict, "7b: so"), asked
    )


def test_how_the_two_answers_join() -> None:
    """The worse one counts; what was measured counts although a rule fails."""
    assert (of("OK").verdict, of("OK").reason) == ("OK", "7b: so; no warning or critical finding")
    assert (of("Unknown").verdict, of("Unknown").because) == ("Unknown", "no_result")
    assert (of("Warning").verdict, of("Warning").reason) == ("Warning", "7b: so")
    assert of("Warning", found=True).verdict == "Critical"
    assert of("Warning", found=True).reason.startswith("7b: so; NVLink is down")
    assert of("Unknown", found=True).verdict == "Critical"
    assert of("Warning", failing_rules=("down",)).verdict == "Warning"
    assert of("OK", failing_rules=("down",)).because == "not_read"


@pytest.mark.parametrize(
    ("preflight", "word", "because"),
    [
        (Preflight("OK", "7b: as it should be"), "Unknown", "inventory"),
        (Preflight("Warning", "7b: 400 GB/s are asked for"), "Warning", None),
    ],
)
def test_what_a_node_cannot_meet_is_said_while_its_inventory_is_only_learned(
    preflight: Preflight, word: Word, because: str | None
) -> None:
    """A healthy node whose parts nobody has accepted is unknown; what was measured is known all the same."""
    asked = Asked(NOW, 60.0)
    health = judge(report(is_inventory_known=False), asked)
    assert (health.verdict, health.because) == ("Unknown", "inventory")
    assert "commwatch inventory accept" in health.reason

    answer = with_preflight(health, preflight, asked)
    assert (answer.verdict, answer.because) == (word, because)
    assert judge(report(is_inventory_known=False), Asked(NOW, 60.0, slurm=True)).exit_code == 0
