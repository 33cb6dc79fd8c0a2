"""A job that is stuck is information at a minute, and graver with time; the finding carries the rank that differs."""

from __future__ import annotations

from commwatch.findings.codes import CODES
from commwatch.findings.facts import Facts
from commwatch_exporters.catalogue import CATALOGUE
from support.facts import NOW, facts_of, seen_by
from support.passes import in_one_pass

FIRST, OTHER = ("0", "0000:17:00.0"), ("1", "0000:18:00.0")


def stuck(seconds: float, **more: dict[tuple[str, ...], float]) -> Facts:
    """A job on two GPUs."""
    numbers = {f"commwatch_{name}": values for name, values in more.items()}
    return facts_of({
        "commwatch_job_stuck_seconds": {FIRST: seconds},
        "commwatch_job_stuck_first": {FIRST: 0.0, OTHER: 0.0},
        **numbers,
    })  # fmt: skip


@in_one_pass(
    "seconds, code",
    [
        (39, ""), (40, "job_stuck_suspected"), (299, "job_stuck_suspected"), (300, "job_stuck"), (899, "job_stuck"),
        (900, "job_stuck_long"), (0, ""),
    ],
)  # fmt: skip
def test_a_stuck_job_is_graver_with_time(seconds: float, code: str) -> None:
    """One degree at a time, of all GPUs of the job."""
    found = seen_by("job_stuck", stuck(seconds))

    assert [one.code for one in found] == ([code] if code else [])
    assert {one.component.words for one in found} <= {"job on GPU0, GPU1"}
    assert not seen_by("job_stuck", facts_of({}))


def test_no_job_that_looks_stuck_pages_anybody() -> None:
    """A service whose kernels spin by night, a rank that merges a checkpoint, and decoding look the same for hours."""
    for seconds in (60, 900, 36_000):
        [match] = seen_by("job_stuck", stuck(seconds))

        assert CODES[match.code].severity in ("info", "warning")


@in_one_pass(
    "odd, words",
    [
        ({(*OTHER, "stopped"): 1.0}, "it is stopped by a signal or a debugger (seen with the rights of the daemon: "
         "state, CPU time and switches)"),
        ({(*OTHER, "waiting_for_file"): 2.0}, "it waits for a file or its file system (seen with the rights of root or "
         "of the job's user)"),
        ({("7", "0000:99:00.0", "gone"): 1.0}, ""),
        ({}, ""),
    ],
)  # fmt: skip
def test_the_finding_names_the_rank_that_differs(odd: dict[tuple[str, ...], float], words: str) -> None:
    """Of this job alone, with its reason and the rights with which it was seen."""
    [match] = seen_by("job_stuck", stuck(300, job_odd_rank=odd))

    assert match.detail == (f"the rank on GPU1 differs from its peers: {words}" if words else "")


def test_a_stuck_job_began_with_its_last_payload_and_uses_the_network_of_the_node() -> None:
    """So that a port that went down just before can be why: a rank on another node is reached by it."""
    labels = len(CATALOGUE["commwatch_rdma_port_info"].labels)
    numbers = {"commwatch_rdma_port_info": {("mlx5_0", "1", *[""] * (labels - 2)): 1.0}}
    [match] = seen_by("job_stuck", facts_of({"commwatch_job_stuck_seconds": {FIRST: 320.0}, **numbers}))

    assert match.since == NOW - 320
    assert match.component.parts == {FIRST[1], "mlx5_0"}
    assert match.component.name == "job on GPU0"


def test_silent_and_stopped_jobs_are_information() -> None:
    """From 40 s on, and at once."""
    assert not seen_by("job_silent", facts_of({"commwatch_job_silent_seconds": {FIRST: 39.0}}))
    assert len(seen_by("job_silent", facts_of({"commwatch_job_silent_seconds": {FIRST: 40.0}}))) == 1
    [match] = seen_by("job_stopped", facts_of({"commwatch_job_stopped_processes": {FIRST: 1.0}}))
    assert match.component.words == "job on GPU0"
