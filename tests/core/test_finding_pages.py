"""docs/findings/ and the rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from commwatch.config.assets import asset
from commwatch.findings.codes import CODES
from commwatch.generate.finding_pages import INDEX, main, outdated, pages
from commwatch.generate.finding_sources import rule_sources
from commwatch_exporters.catalogue import CATALOGUE

FOLDER = Path(__file__).parents[2] / "docs" / "findings"


def test_the_pages_are_current() -> None:
    """docs/findings/ is what the rules say; if not: python -m commwatch.generate.finding_pages."""
    assert outdated(FOLDER) == []


def test_every_code_has_a_page_that_says_what_it_stands_on() -> None:
    """Meaning, next step, the rule that sights it with its metrics, and both times."""
    written = pages()

    assert written.keys() == {INDEX, *(f"{name}.md" for name in CODES)}
    for name, code in CODES.items():
        page = written[f"{name}.md"]
        assert f"`{name}`, {code.severity}, {code.role}." in page
        assert code.meaning in page
        assert code.next_step in page
        assert f"{code.closes_after:g} s" in page
        assert any(f"| `{metric}` |" in page for metric in CATALOGUE), f"no rule names {name}"
        assert written[INDEX].count(f"[`{name}`]({name}.md)") == 1


def test_pages_lead_somewhere() -> None:
    """Every link of a page is another page, a runbook or a document of this repository."""
    for name, page in pages().items():
        for target in re.findall(r"\]\(([^)]+)\)", page):
            assert (FOLDER / target).resolve().exists(), f"{name}: {target}"


def test_codes_name_alerts_that_are_shipped() -> None:
    """A runbook is what such an alert has."""
    runbooks = {file.stem for file in (asset("alerts") / "runbooks").glob("*.md")}

    assert {code.alert for code in CODES.values()} - {""} <= runbooks


def test_rules_are_read_to_the_end() -> None:
    """Tables, functions that a rule calls and thresholds are found; a rule that only counts has no threshold."""
    sources = {source.name: source for source in rule_sources()}

    states = sources["gpu.states"]
    assert states.codes == {"gpu_lost", "gpu_missing", "gpu_not_answering", "gpu_reset_required"}
    assert states.metrics == ("commwatch_gpu_state",)
    assert states.thresholds == ()
    recovering = sources["nvlink_errors.recovering"]
    assert recovering.thresholds == ("nvlink_recoveries_per_day", "nvlink_recoveries_per_hour")
    assert all(source.docstring and source.codes and source.metrics for source in sources.values())


def test_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--check names what is missing, changed or superfluous and writes nothing; a run without it puts all right."""
    folder = tmp_path / "findings"
    assert main([str(folder), "--check"]) == 1
    assert not folder.exists()
    assert main([str(folder)]) == 0
    assert main([str(folder), "--check"]) == 0
    capsys.readouterr()

    (folder / "nvlink_down.md").write_text("old", encoding="utf-8")
    (folder / "no_code.md").write_text("", encoding="utf-8")
    (folder / "gpu_lost.md").unlink()
    assert main([str(folder), "--check"]) == 1
    said = capsys.readouterr().err
    assert all(name in said for name in ("nvlink_down.md", "no_code.md", "gpu_lost.md"))
    assert main([str(folder)]) == 0
    assert outdated(folder) == []
