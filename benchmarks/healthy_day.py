"""False alarms: a healthy day on every preset, with all rules and findings; see docs/engineering/false-alarms.md.

Example:
    python -m benchmarks.healthy_day --preset h200x1
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "daemon"), str(ROOT / "exporters")]

from commwatch_rehearsal.simulation.presets import PRESETS  # noqa: E402 - the checkout need not be installed
from support.healthy_day import Outcome, play  # noqa: E402 - as above
from support.simulated_day import SHORT_DAY, WHOLE_DAY  # noqa: E402 - as above

BEGIN, END = "<!-- begin of the table -->", "<!-- end of the table -->"
_HEAD = """\
| preset | scrapes | series read | pages | tickets | critical or warning findings | alerts of severity info | minutes |
| --- | ---: | ---: | ---: | ---: | ---: | --- | ---: |
"""


def measured(preset: str, *, short: bool) -> tuple[Outcome, float]:
    """A day of a preset, and the minutes that it took."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        outcome = play(PRESETS[preset], SHORT_DAY if short else WHOLE_DAY, Path(folder))
    return outcome, (time.monotonic() - started) / 60


def table(outcomes: Iterable[tuple[Outcome, float]]) -> str:
    """Markdown."""
    return _HEAD + "".join(_row(outcome, minutes) for outcome, minutes in outcomes)


def _row(outcome: Outcome, minutes: float) -> str:
    severities = [one.severity for one in outcome.alerts]
    informed = sorted({f"`{one.name}`" for one in outcome.alerts if one.severity == "info"} - {"`CommwatchWatchdog`"})
    cells = (
        f"`{outcome.preset}`", f"{outcome.scrapes:,}", f"{outcome.series:,}", severities.count("critical"),
        severities.count("warning"), len(outcome.grave_findings()), ", ".join(informed), f"{minutes:.1f}",
    )  # fmt: skip
    return f"| {' | '.join(str(cell) for cell in cells)} |\n"


def write_report(file: Path, text: str) -> None:
    """Put the table between its marks in a page."""
    page = file.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    file.write_text(f"{before}{BEGIN}\n{text}{END}{after}", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the days; 1 if anything above information was raised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", action="append", choices=sorted(PRESETS), help="only this one; may be repeated")
    parser.add_argument("--short", action="store_true", help="the same events in an hour")
    parser.add_argument("--at-once", type=int, default=2, metavar="N", help="days side by side; default 2")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the table into this page")
    given = parser.parse_args(arguments)
    if given.short and given.report is not None:
        parser.error("the table of the page is of the whole day: not --report with --short")
    if given.preset and given.report is not None:
        parser.error("the table of the page is of every preset: not --report with --preset")
    presets, outcomes = given.preset or list(PRESETS), {}
    with ProcessPoolExecutor(given.at_once) as pool:
        days = [pool.submit(measured, preset, short=given.short) for preset in presets]
        for day in as_completed(days):
            outcome, minutes = day.result()
            outcomes[outcome.preset] = (outcome, minutes)
            _report(outcome, minutes)
    rows = table(outcomes[preset] for preset in presets)
    if given.report is not None:
        write_report(given.report, rows)
    print(rows, end="")
    return int(any(outcome.grave_alerts() or outcome.grave_findings() for outcome, _ in outcomes.values()))


def _report(outcome: Outcome, minutes: float) -> None:
    grave = len(outcome.grave_alerts()), len(outcome.grave_findings())
    print(f"{outcome.preset}: {grave[0]} alerts, {grave[1]} findings in {minutes:.1f} min", file=sys.stderr, flush=True)
    for alert in outcome.grave_alerts():
        print(f"  {alert.first_seconds:8.0f} s {alert.severity} {alert.name} {alert.about}", file=sys.stderr)
    for finding in outcome.grave_findings():
        print(f"  {finding.seconds:8.0f} s finding {finding.code} {finding.component}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
