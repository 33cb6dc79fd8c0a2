"""Writes grafana/dashboards/ from the panels and the thresholds: ``python -m commwatch.generate.dashboards``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from commwatch.config.assets import asset
from commwatch.config.thresholds import Thresholds, load_thresholds
from commwatch.errors import CommwatchError
from commwatch.generate.alert_rules import Site, shipped_alerts
from commwatch.generate.dashboards import DASHBOARDS
from commwatch.generate.dashboards.grafana import Renderer
from commwatch.generate.dashboards.panels import INSTANCE
from commwatch.generate.site import SiteFile, read_site_file


def files(thresholds: Thresholds, site: Site) -> dict[str, str]:
    """All dashboards by the name of their file."""
    models = {
        one.uid: Renderer(thresholds, site, of_one_node=INSTANCE in one.variables).dashboard(one) for one in DASHBOARDS
    }
    return {f"{uid}.json": json.dumps(model, indent=2, ensure_ascii=False) + "\n" for uid, model in models.items()}


def outdated(written: dict[str, str], folder: Path) -> list[str]:
    """Names of the files that differ, that are missing, or that are no dashboard any more."""
    present = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("commwatch-*.json")}
    return sorted(name for name in written.keys() | present.keys() if written.get(name) != present.get(name))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the dashboards, or with ``--check`` say whether they are current; 0 fine, 1 outdated, 2 bad thresholds."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="python -m commwatch.generate.dashboards", description="Renders Grafana's dashboards."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is not current")
    parser.add_argument("--output", type=Path, metavar="DIR", help="where to write (default: the shipped folder)")
    parser.add_argument("--site", type=Path, metavar="FILE", help="what your site changes (alerts/site.example.yml)")
    parser.add_argument("--thresholds", type=Path, metavar="FILE", help="thresholds in place of shipped ones")
    parser.add_argument("--runbooks", metavar="URL", help="where the runbooks can be read")
    options = parser.parse_args(arguments)
    if options.site is not None and options.output is None:
        parser.error("--site needs --output: the shipped dashboards stay as they are")
    try:
        own = SiteFile() if options.site is None else read_site_file(options.site, shipped_alerts())
        thresholds = load_thresholds(options.thresholds or own.thresholds)
    except CommwatchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    runbooks = options.runbooks or own.words.get("runbooks", Site().runbooks)
    written = files(thresholds, Site(runbooks=runbooks.rstrip("/")))
    folder = options.output or asset("grafana") / "dashboards"
    wrong = outdated(written, folder)
    if options.check:
        for name in wrong:
            print(f"{folder / name} is not current; run python -m commwatch.generate.dashboards", file=sys.stderr)
        return 1 if wrong else 0
    folder.mkdir(parents=True, exist_ok=True)
    for name in wrong:
        if name in written:
            (folder / name).write_text(written[name], encoding="utf-8")
        else:
            (folder / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
