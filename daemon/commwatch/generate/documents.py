"""Writes every file that is made from rules, codes and tables: ``python -m commwatch.generate.documents``."""

from __future__ import annotations

from pathlib import Path

from commwatch.config.metric_profile import CORE_FILE
from commwatch.config.thresholds import Thresholds, load_thresholds
from commwatch.generate import alert_list, core_metrics, counter_tables, exit_codes, finding_pages, inhibition
from commwatch.generate.alert_rules import Site, render_all
from commwatch.generate.dashboards.render import files as dashboards
from commwatch_exporters import documentation
from commwatch_exporters.catalogue import SECTIONS

RULES = Path("alerts/rules")
DASHBOARDS = Path("grafana/dashboards")
"""Folders of which every file is generated."""


def documents(root: Path, thresholds: Thresholds | None = None) -> dict[Path, str]:
    """Each file as it should be now.

    Args:
        root: of the project; a document of which only a part is made keeps the rest that it has there.
        thresholds: in force; None: those that are shipped.
    """
    in_force = thresholds or load_thresholds(None)
    in_part = {
        counter_tables.FILE: counter_tables.page,
        inhibition.EXAMPLE: inhibition.example_with_table,
        inhibition.DOCUMENT: inhibition.document_with_table,
    }
    return {
        **{root / RULES / name: text for name, text in render_all(in_force, Site()).items()},
        **{root / DASHBOARDS / name: text for name, text in dashboards(in_force, Site()).items()},
        root / documentation.FILE: documentation.document(SECTIONS),
        root / finding_pages.FILE: finding_pages.page(),
        root / alert_list.FILE: alert_list.page(in_force),
        root / exit_codes.FILE: exit_codes.page(),
        CORE_FILE: core_metrics.page(),
        **{root / file: page((root / file).read_text(encoding="utf-8")) for file, page in in_part.items()},
    }


if __name__ == "__main__":
    for file, text in documents(Path()).items():
        file.write_text(text, encoding="utf-8")
