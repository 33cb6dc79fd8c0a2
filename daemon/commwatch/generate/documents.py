"""Writes every file that is made from rules, codes and tables: ``python -m commwatch.generate.documents``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from commwatch.config.exit_codes import GENERAL, SIGNALLED, UNWRITTEN
from commwatch.config.metric_profile import CORE_FILE
from commwatch.config.thresholds import Thresholds, load_thresholds
from commwatch.generate import alert_list, counter_tables, finding_pages, inhibition, metric_tables
from commwatch.generate.alert_rules import Site, render_all
from commwatch.generate.dashboards import files as dashboard_files
from commwatch_exporters.catalogue import SECTIONS, family_of

RULES = Path("alerts/rules")
DASHBOARDS = Path("grafana/dashboards")
"""Folders of which every file is generated."""
EXIT_CODES = Path("docs/reference/exit-codes.md")
_METRIC = re.compile(r"(?<![:\w])commwatch_\w+")


def documents(root: Path, thresholds: Thresholds | None = None) -> dict[Path, str]:
    """The current content of each generated file.

    Args:
        root: of the project; a document of which only a part is made keeps the rest that it has there.
    """
    in_force = thresholds or load_thresholds(None)
    rules, dashboards = render_all(in_force, Site()), dashboard_files(in_force, Site())
    in_part = {
        counter_tables.FILE: counter_tables.page,
        inhibition.EXAMPLE: inhibition.example_with_table,
    }
    return {
        **{root / RULES / name: text for name, text in rules.items()},
        **{root / DASHBOARDS / name: text for name, text in dashboards.items()},
        root / metric_tables.FILE: metric_tables.page(SECTIONS),
        root / finding_pages.FILE: finding_pages.page(),
        root / alert_list.FILE: alert_list.page(in_force),
        root / EXIT_CODES: exit_codes(),
        CORE_FILE: core_metrics([*rules.values(), *dashboards.values()]),
        **{root / file: page((root / file).read_text(encoding="utf-8")) for file, page in in_part.items()},
    }


def exit_codes() -> str:
    """docs/reference/exit-codes.md: the table of all codes; their meanings for each command are in its help."""
    lines = [
        "# Exit codes",
        "",
        "`make docs` writes this page from `config/exit_codes.py`. `commwatch COMMAND --help` ends with what each code"
        " means for that command. [Health check](../using/healthcheck.md#exit-codes) has those that schedulers read.",
        "",
        "| code | meaning |",
        "| --- | --- |",
        *(f"| {code} | {meaning} |" for code, meaning in GENERAL.items()),
        "",
        f"{SIGNALLED} {UNWRITTEN}",
    ]
    return "\n".join(lines) + "\n"


def core_metrics(texts: Iterable[str]) -> str:
    """The metrics that rules and dashboards ask for: one name a line, in the order of the alphabet."""
    families = set()
    for name in {name for text in texts for name in _METRIC.findall(text)}:
        try:
            families.add(family_of(name).name)
        except KeyError:
            continue  # a group of rules, or a word of the site
    # A metric that alerts read as a recent rise stays there as its counter.
    families |= {f"{name.removesuffix('_recent')}_total" for name in families if name.endswith("_recent")}
    return "".join(f"{name}\n" for name in sorted(families))


if __name__ == "__main__":
    for file, text in documents(Path()).items():
        file.write_text(text, encoding="utf-8")
