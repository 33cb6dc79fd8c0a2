"""The HTML report as a browser would take it apart."""

from __future__ import annotations

import argparse
import platform
import re
import socket
from html.parser import HTMLParser
from pathlib import Path

import pytest

from commwatch.commands.diagnose import write_files
from commwatch.config.settings import Config
from commwatch.diagnosis.document import Diagnosis
from commwatch.diagnosis.known import Known
from heatmap.matrices import endpoints, matrix
from support.diagnoses import NOW, cause, closed_finding, component, faulty, finding, healthy, known_of

VOID = ("meta", "br")
HOSTILE = '<script>alert(1)</script>"onload="x\u202e\x1b[2J'


class Page(HTMLParser):
    """Elements and texts of a page; an element that does not end in its order is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember the element."""
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Elements end in the order in which they began, the other way round."""
        assert tag == self.open.pop()

    def handle_data(self, data: str) -> None:
        """Keep what a reader sees."""
        if self.open[-1:] != ["style"]:
            self.text += data


@pytest.fixture(autouse=True)
def _host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "node7")
    monkeypatch.setattr(platform, "release", lambda: "6.8.0")
    monkeypatch.chdir(tmp_path)


def made(document: Diagnosis, known: Known | None = None) -> str:
    file = Path("report.html")
    write_files(argparse.Namespace(report=file, bundle=None), Config(), known or known_of(document), document)
    return file.read_text(encoding="utf-8")


def page(document: Diagnosis) -> Page:
    found = Page(made(document))

    assert found.open == []
    return found


def test_verdict_node_findings_and_checks_are_in_it() -> None:
    """What someone wants to know who has only this page: which node, what, since when, why, what to do."""
    text = page(faulty()).text

    for part in (
        "Communication of node7", "8 × NVIDIA H100 80GB HBM3", "Warning: PCIe link with fewer lanes",
        "since 2026-09-21 13:23:20 UTC",
        "bandwidth: 22 GB/s (limit 48 GB/s)", "lanes: x8 (limit x16)", "Next: Reseat the card",
        "144 parts, GPU0 link 0 to GPU7 link 17", "at least 360 GB/s", "not measured; it takes 20 results",
        "GPU-6f2c1b7e-3", "1653", "580.95.05", "6.8.0", "GPU1 is slow to and from every other GPU",
    ):  # fmt: skip
        assert part in text, part


def test_what_was_closed_lately_is_in_it() -> None:
    """With both times, and why it was closed where it was not cured; no heading where nothing was closed."""
    text = page(healthy(closed=(closed_finding(NOW, note="no longer measured"),))).text

    assert "Closed in the last day" in text
    for part in ("warning: Slow collective (no longer measured)", "2026-09-21 14:13:20 UTC", "2026-09-21 14:23:20 UTC"):
        assert part in text, part
    assert "Closed in the last day" not in page(healthy()).text


def test_a_simulated_node_is_called_so_first() -> None:
    """Before anything else, and in the title; a real one is not."""
    simulated = page(faulty(simulated="h100x8ndr")).text

    assert simulated.index("Simulated node h100x8ndr: none of this is real.") < simulated.index("Communication of")
    assert "(simulated)" in simulated[:200]
    assert "imulated" not in page(faulty()).text


def test_nothing_is_run_or_loaded() -> None:
    """No script, no image, no link, no event, nothing from elsewhere; and the browser is told so."""
    text = made(faulty())
    found = Page(text)

    tags = {tag for tag, _ in found.elements}
    assert tags.isdisjoint({"script", "img", "link", "iframe", "a", "object", "form"})
    assert not [name for _, names in found.elements for name in names if name.startswith("on")]
    assert "url(" not in text
    assert "//" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert {"http-equiv": "Content-Security-Policy", "content": "default-src 'none'; style-src 'unsafe-inline'"} in [
        names for tag, names in found.elements if tag == "meta"
    ]


def test_hostile_names_stay_texts() -> None:
    """Whatever firmware, a host or a log calls a thing: no element more, and nothing that turns text around."""
    harmless = page(faulty())
    checks = [
        type(one)(
            branch=one.branch, what=HOSTILE, where=HOSTILE, measured=HOSTILE, required=HOSTILE, verdict=one.verdict,
            detail=HOSTILE, next_step=HOSTILE,
        )
        for one in faulty().checks[-6:]
    ]  # fmt: skip
    named = component("gpu", HOSTILE, HOSTILE)
    hostile = faulty(
        findings=(finding(component=named, detail=HOSTILE, causes=(cause(component=named, reason=HOSTILE),)),),
        checks=tuple(checks),
        matrix=matrix(endpoints=endpoints(8, HOSTILE)),
        simulated=HOSTILE,
        maintenance=HOSTILE,
    )
    known = known_of(hostile, {("commwatch_gpu_info", ("9", HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE)): 1})
    text = made(hostile, known)
    found = Page(text)

    assert found.open == []
    assert {tag for tag, _ in found.elements} <= {tag for tag, _ in harmless.elements} | {"p"}
    assert found.text.count("<script>") > 15
    assert not [name for _, names in found.elements for name in names if name.startswith("on")]
    assert "\u202e" not in text
    assert "\x1b" not in text


def test_every_cell_of_the_matrix_can_be_read() -> None:
    """56 pairs on a colour with ink of at least 4.5 to 1; those of a suspect have a frame; in both pictures."""
    found = page(faulty())
    boxes = [names for tag, names in found.elements if tag == "rect"]
    mark = "(?:<rect [^>]*>){2}<text [^>]*>A</text>"
    colours = rf'<rect [^>]*rx="3" fill="#(\w{{6}})"/>(?:{mark})?<text [^>]*fill="#(\w{{6}})"'
    cells = re.findall(colours, made(faulty()))

    assert len(cells) == 2 * 56
    assert sum(names.get("class") == "mark" for names in boxes) == 2 * 14
    for ground, ink in cells:
        lighter, darker = sorted((_lightness(ground), _lightness(ink)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5


def _lightness(shade: str) -> float:
    """Relative luminance (WCAG 2.1), reckoned apart from the code under test."""
    parts = [int(shade[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return sum(weight * one for weight, one in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_what_was_not_measured_is_not_drawn() -> None:
    """No matrix, no heading for it; a gap in it is a dash; no score says so."""
    assert "Pairs of GPUs" not in page(healthy(matrix=None)).text
    assert "not measured" in page(healthy(matrix=matrix(missing=[(0, 1)]))).text


def test_eight_gpus_take_less_than_200_kb() -> None:
    """With every check in it; and a thousand of them do not make it endless."""
    assert len(made(faulty()).encode()) < 200_000
    many = faulty(checks=healthy().checks * 20, findings=tuple(finding(code=f"c{one}") for one in range(500)))
    assert len(made(many).encode()) < 400_000


def test_light_dark_phone_and_print_have_their_styles() -> None:
    """By CSS alone; print takes the light colours, whatever the system's are."""
    text = made(healthy())

    assert "@media screen and (prefers-color-scheme:dark)" in text
    assert "@media (max-width:40rem)" in text
    assert "@media print" in text
    assert '<meta name="viewport"' in text
