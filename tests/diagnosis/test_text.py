"""A diagnosis as text: fits 80 columns, and says at once what needs hands."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import pytest

from commwatch.diagnosis.check import Check, CheckVerdict
from commwatch.diagnosis.document import Diagnosis
from commwatch.diagnosis.text import diagnosis_lines, screen_lines
from commwatch.findings.verdict import Verdict
from commwatch.jobs.evidence import JobEvidence
from commwatch.lines import plain
from support.diagnoses import NOW, cause, closed_finding, component, faulty, finding, healthy
from support.passes import in_one_pass


def text(document: Diagnosis, *, width: int = 80, every: bool = False) -> list[str]:
    return [plain(line) for line in diagnosis_lines(document, width=width, every=every)]


def test_a_healthy_node_fits_a_screen() -> None:
    """164 checks take 16 lines: the verdict first; what passed is counted."""
    found = text(healthy())

    assert found[0] == "OK: no warning or critical finding"
    assert "Checks: 153 passed, 1 published mark, 1 not measured, 2 do not apply" in found
    assert [line for line in found if "passed" in line and "153" not in line] == [found[-1]]  # counted once
    assert len(found) <= 16
    assert not any(line.startswith("passed") for line in found)
    assert found[-1] == "--all shows each check, also what passed."
    assert max(map(len, found)) <= 80


def test_the_evidence_on_a_job_says_who_gave_it_when() -> None:
    """Jobs with evidence of their own are not put together, however alike they are."""
    jobs = tuple(
        finding(
            code="job_stuck",
            component=component("process", f"0000:{number}:00.0", f"job on GPU{number}"),
            job_evidence=(JobEvidence("proc", f"rank {number} sleeps"), JobEvidence("ras", "RAS: rank 1 is behind")),
        )
        for number in range(3)
    )
    found = text(healthy(findings=jobs))
    assert [line.strip() for line in found if "seen now" in line] == [
        f"seen now: rank {one} sleeps" for one in range(3)
    ]
    assert found.count("  from the job: RAS: rank 1 is behind") == 3


LONG = "a text that takes more than one line at this width, however it is told, and is told here twice. " * 2
MANY_CAUSES = tuple(cause(component=component("gpu", f"GPU-{number}"), reason=LONG) for number in range(9))


@pytest.mark.parametrize(
    "document",
    [
        healthy(),
        faulty(simulated="h100x8ndr", maintenance=LONG),
        healthy(
            findings=(
                finding(causes=MANY_CAUSES, detail=LONG),
                *(finding(code=f"code_{number}", title=LONG) for number in range(12)),
            ),
            verdict=Verdict("Warning", LONG * 3),
        ),
    ],
    ids=["healthy", "one fault", "much"],
)
def test_a_full_scan_is_one_screen(document: Diagnosis) -> None:
    """Verdict, first finding with cause and next step, the others by a line, and the score: 24 lines, 80 columns."""
    found = [plain(line) for line in screen_lines(document)]

    assert len(found) <= 24
    assert max(map(len, found)) <= 80
    assert any(line.startswith(f"{document.verdict.word}: ") for line in found)
    assert any(line.startswith("Communication score: ") for line in found)
    assert any(line.startswith("Checks: ") for line in found)
    assert not any(line.startswith(("verdict", "failed", "passed")) for line in found)
    if document.findings:
        titles = [line for line in found if line.startswith(("warning: ", "info: "))]
        assert len(titles) == min(len(document.findings), 6)
        assert any(line.startswith("  cause 1: ") for line in found)
        assert any(line.startswith("  next: ") for line in found)


def test_what_was_closed_lately_has_both_times() -> None:
    """The latest five of the last day, each with when it opened and closed, and why where it was not cured; all by
    --all. Nothing is said where nothing was closed."""
    closed = [closed_finding(NOW - 60 * place, note="no longer measured" if place else "") for place in range(7)]
    shown = " ".join(line.strip() for line in text(healthy(closed=tuple(closed))))
    every = " ".join(line.strip() for line in text(healthy(closed=tuple(closed)), every=True))

    assert (
        "Closed in the last day: warning: Slow collective: probe all_reduce, opened 2026-09-21 14:13:20 UTC, closed "
        "2026-09-21 14:23:20 UTC warning: Slow collective: probe all_reduce (no longer measured), opened "
        "2026-09-21 14:12:20 UTC," in shown
    )
    assert "and 2 more; --all shows them" in shown
    assert (shown.count(", closed "), every.count(", closed ")) == (5, 7)
    assert not any("Closed" in line for line in text(healthy()))


def test_what_failed_stands_first() -> None:
    """Finding with evidence, cause and next step; in the table the failed check is the first, with its step. No line
    is wider than the terminal, in short or in full."""
    found = text(faulty())
    document = faulty(simulated="h100x8ndr", maintenance="drill")

    assert all(
        max(map(len, text(document, width=width, every=every))) <= width
        for width in (80, 60)
        for every in (False, True)
    )
    assert not any(line.strip().startswith(",") for width in range(40, 80) for line in text(document, width=width))
    assert found[:2] == [
        "Warning: PCIe link with fewer lanes: PCIe link of GPU1 (0000:18:00.0), the",
        "  likeliest cause of: Slow collective: probe all_reduce",
    ]
    assert "warning: Slow collective: probe all_reduce, for 1 h" in found
    assert "    lanes: x8 (limit x16)" in found
    assert "  next: Reseat the card, then look at the slot and the riser." in found
    table = found[found.index("Topology") :]
    assert table[1] == "failed     lanes of the PCIe link: GPU1              x8        at least x16"
    assert "  GPU1: The link trained to fewer lanes than both ends have. Reseat the card." in table


def test_all_shows_every_check() -> None:
    """Also the ones that passed, that were not measured and that do not apply."""
    found = text(healthy(), every=True)

    assert sum(line.startswith("passed") for line in found) == 153
    assert sum("state of an NVLink: GPU" in line for line in found) == 144
    assert sum("rate of the port: mlx5_" in line for line in found) == 2
    assert not any("rate of the port" in line for line in text(healthy()))


def checks(measured: Sequence[str], verdict: CheckVerdict = "published mark") -> tuple[Check, ...]:
    """The lanes of as many GPUs."""
    return tuple(
        Check(branch="topology", what="lanes", where=f"GPU{gpu}", measured=one, required="at least 8", verdict=verdict)
        for gpu, one in enumerate(measured)
    )


def rows(found: Sequence[Check]) -> list[list[str]]:
    """The cells of the table's rows."""
    lines = text(healthy(checks=tuple(found)), width=120)
    start = lines.index("Topology") + 1
    end = lines.index("", start) if "" in lines[start:] else len(lines)
    return [re.split(r" {2,}", line) for line in lines[start:end] if "  " in line.strip()]


@in_one_pass(
    "measured, said",
    [
        (["8", "8", "8"], "8"),
        (["x8", "x16", "x2"], "x2 to x16"),
        (["48.5 GB/s", "9 GB/s", "50 GB/s"], "9 to 50 GB/s"),
        (["900 MB/s", "1.2 GB/s", "1.3 GB/s"], "various"),
        (["8", "none", "8"], "various"),
        (["", "", ""], "-"),
        (["index 3", "index 1", "index 2"], "index 1 to 3"),
    ],
)
def test_one_row_says_from_where_to_where(measured: list[str], said: str) -> None:
    """The least and the greatest number in their unit, else that they are various; what is equal stands once."""
    assert rows(checks(measured)) == [["published", "lanes: 3 parts, GPU0 to GPU2", said, "at least 8"]]


@in_one_pass("verdict, count, lines", [("published mark", 2, 2), ("failed", 8, 8), ("failed", 9, 1), ("notice", 4, 4)])
def test_few_stay_apart(verdict: CheckVerdict, count: int, lines: int) -> None:
    """Two of what needs no hands, and eight of what failed: each may need them."""
    assert len(rows(checks(["4"] * count, verdict))) == lines


def test_different_things_are_not_mixed() -> None:
    """A failed one and others of the same quantity are two rows, the failed one above; all are counted."""
    mixed = (*checks(["8"] * 5), *checks(["4"], "failed"))

    assert [row[:2] for row in rows(mixed)] == [
        ["failed", "lanes: GPU0"],
        ["published", "lanes: 5 parts, GPU0 to GPU4"],
    ]
    assert "Checks: 1 failed, 5 published marks" in text(healthy(checks=mixed))


def test_a_note_is_said_once() -> None:
    """However many checks share it; no line for what passed."""
    shared = [
        Check(branch="topology", what="a", where=str(number), verdict="failed", detail="Dirty", next_step="Clean it.")
        for number in range(3)
    ]
    fine = Check(branch="topology", what="b", verdict="passed", detail="All is well.")
    # How many processes have a setting does not tell two settings apart: its name does.
    setting = Check(branch="settings", what="NCCL_ALGO (algorithm and protocol)", where="8 processes",
                    verdict="failed", detail="NCCL may no longer choose", next_step="Take it out")  # fmt: skip
    found = text(healthy(checks=(*shared, fine, setting)))

    assert sum("Dirty. Clean it." in line for line in found) == 1
    assert not any("All is well" in line for line in found)
    assert "  NCCL_ALGO (algorithm and protocol): NCCL may no longer choose. Take it out." in found


def test_what_was_not_measured_says_why() -> None:
    """Once for all that share the reason, outside of the table."""
    found = text(healthy())

    place = found.index("Pattern")
    assert found[place + 1 : place + 3] == [
        "  not measured: bandwidth over sizes (a full scan measures it: commwatch",
        "    diagnose --full-scan)",
    ]


def test_findings_that_differ_in_their_part_alone_are_one() -> None:
    """Three of a code are shown together, with one next step, if they have the same; two are told apart."""
    alike = tuple(finding(component=component("gpu", f"GPU-{gpu}", f"GPU{gpu}")) for gpu in range(10))
    found = text(healthy(findings=alike, verdict=Verdict("Warning", "x")))

    assert "warning: Slow collective: 10 parts" in found
    assert sum(line.startswith("  next:") for line in found) == 1
    assert "  and 6 more; --all shows them" in found
    assert sum(line.startswith("  next:") for line in text(healthy(findings=alike[:2]))) == 2
    assert sum(line.startswith("  next:") for line in text(healthy(findings=alike), every=True)) == 10
    own = tuple(msgspec.structs.replace(one, next_step=f"Look at {one.component.name}.") for one in alike[:3])
    assert sum(line.startswith("  next:") for line in text(healthy(findings=own))) == 3


def test_findings_with_the_same_causes_are_one() -> None:
    """The causes are told once, and the next step is the first one's; another cause is another story."""
    probes = [component(key=name, name=f"probe {name}") for name in ("all_reduce", "all_gather", "broadcast")]
    alike = tuple(finding(component=one, causes=(cause(),)) for one in probes)
    found = text(healthy(findings=alike))

    assert "warning: Slow collective: 3 parts" in found
    assert sum(line.startswith("  cause 1:") for line in found) == 1
    assert [line for line in found if line.startswith("  next:")] == [f"  next: {cause().next_step}"]
    other = finding(component=probes[0], causes=(cause(component=component("pcie_link", "0000:19:00.0")),))
    assert sum(line.startswith("  cause 1:") for line in text(healthy(findings=(*alike, other)))) == 2


def test_many_findings_are_counted() -> None:
    """Eight are told in full, the most severe, and how many more there are."""
    many = tuple(finding(code=f"code_{number}") for number in range(12))

    assert "and 4 more findings; --all shows them" in text(healthy(findings=many))


def test_names_cannot_move_the_cursor() -> None:
    """A device may be called whatever its firmware says."""
    found = text(healthy(findings=(finding(component=component(name="\x1b[2Jgone\u202e")),)))

    assert any("?[2Jgone?" in line for line in found)
    assert all(line.isprintable() for line in found)
