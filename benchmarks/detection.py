"""How long a fault takes to a firing alert: simulated node, real Prometheus, shipped rules and intervals.

Example:
    python -m benchmarks.detection --json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "daemon"), str(ROOT / "exporters")]

from support.daemon import running  # noqa: E402 - the checkout need not be installed
from support.prometheus import prometheus  # noqa: E402 - as above

FAULTS = {
    "CommwatchNvlinkDown": "{fault: nvlink_down, gpu: 3, link: 5, at: 1s}",
    "CommwatchGpuNotAnswering": "{fault: driver_hang, gpu: 1, at: 1s}",
}
LONGEST_SECONDS = 120


def detect(folder: Path) -> dict[str, float]:
    """Seconds from each fault to its alert; each comes while those before it hold."""
    faults, config = folder / "faults.yaml", folder / "commwatch.yaml"
    faults.write_text("[]\n")
    config.write_text("inventory: {learn_after: 1s}\nprobes: {enabled: false}\n")
    arguments = ("--simulate", "h100x8", "--simulate.faults", str(faults), "--config.file", str(config))
    rules = sorted((ROOT / "alerts" / "rules").glob("*.yaml"))
    seconds = {}
    with running(folder, *arguments) as daemon, prometheus(folder, rules, "15s") as server:
        server.scrape(daemon.address)
        daemon.until(lambda: daemon.count("nvlink_link_expected") == 144)
        time.sleep(62)  # four scrapes of a healthy node
        text = ""
        for alert, fault in FAULTS.items():
            text += f"- {fault}\n"
            new = faults.with_suffix(".new")
            new.write_text(text)
            new.replace(faults)
            started = time.monotonic()
            server.until(lambda alert=alert: alert in server.firing(), LONGEST_SECONDS)  # type: ignore[misc]  # bound now
            seconds[alert] = round(time.monotonic() - started, 1)
    return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    print("takes about three minutes", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        seconds = detect(Path(folder))
    if given.json:
        print(json.dumps(seconds))
        return
    for alert, value in seconds.items():
        print(f"{alert:28} {value:6.1f} s from fault to firing")


if __name__ == "__main__":
    main()
