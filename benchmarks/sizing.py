"""How large a Prometheus a fleet needs: series, bytes and samples by nodes, and the memory of a real Prometheus.

A simulated daemon of each preset gives its whole page (``metrics.profile: all``); the pages of the other profiles are
what they leave of it. With ``--prometheus`` a real Prometheus scrapes one of these pages under so many names, with our
rules; what it needs for each series of the pages is taken for other fleets too.

Examples:
    python -m benchmarks.sizing
    python -m benchmarks.sizing --presets b200x8 --copies 9 --warm 30
    python -m benchmarks.sizing --presets h100x8ndr --prometheus 100 --seconds 2100 --profile core
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from benchmarks.daemon import stand_in, wait_for_snapshot
from benchmarks.fleet import INTERVAL_SECONDS, PORTS, environment, fetched, start_prometheus, watch

from commwatch.config.metric_profile import unexported
from commwatch.config.settings import Metrics
from commwatch_exporters.catalogue import OPT_IN, family_of
from commwatch_rehearsal.simulation.presets import PRESETS

PROFILES = ("core", "standard", "all")
FLEETS = (100, 500, 2_000)
_NAME = re.compile(r"(?:# (?:HELP|TYPE) )?(\w+)")


@dataclass(frozen=True)
class Page:
    """What one scrape of a node brings."""

    series: int
    plain_bytes: int
    gzip_bytes: int


def pages(text: str) -> Mapping[str, Page]:
    """The pages of all profiles, from the page of the profile ``all``."""
    families = {name: "".join(lines) for name, lines in groupby(text.splitlines(keepends=True), _family)}
    left_out = {
        "core": unexported(Metrics(profile="core")) | OPT_IN, "standard": OPT_IN, "all": frozenset[str](),
    }  # fmt: skip
    return {
        profile: _page([part for name, part in families.items() if name not in left_out[profile]])
        for profile in PROFILES
    }


def _family(line: str) -> str:
    found = _NAME.match(line)
    name = found[1] if found else ""
    return family_of(name).name if name.startswith("commwatch_") else name


def _page(parts: list[str]) -> Page:
    series = sum(not line.startswith("#") for part in parts for line in part.splitlines())
    page = "".join(parts).encode()
    return Page(series, len(page), len(gzip.compress(page, compresslevel=1, mtime=0)))


def measured_pages(preset: str, seconds: float, copies: int = 1) -> Mapping[str, Page]:
    """The pages of a simulated node after its first probes; with copies of its GPUs, without probes."""
    with daemon(preset, "all", seconds, copies):
        return pages(fetched(PORTS["daemon"]).decode())


class daemon:  # noqa: N801 - used as a function in a with statement
    """A daemon of a simulated node for the time of a block, which begins after so many seconds.

    With copies of its GPUs it is one beside the stand-in driver, where no probe can run.
    """

    def __init__(self, preset: str, profile: str, seconds: float, copies: int = 1) -> None:
        self._preset, self._profile, self._seconds, self._copies = preset, profile, seconds, copies

    def __enter__(self) -> None:
        """Start it and wait."""
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        # What was learned is a series for each link and lane, on a real node after ten minutes.
        (folder / "commwatch.yaml").write_text(
            f"metrics: {{profile: {self._profile}}}\ninventory: {{learn_after: 5s}}\n"
            f"probes: {{enabled: {str(self._copies == 1).lower()}}}\n"
        )
        node: tuple[list[str], Mapping[str, str]] = (["--simulate", self._preset], {})
        if self._copies > 1:
            node = stand_in(self._preset, folder, self._copies)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "commwatch", "run", *node[0], "--path.state", folder / "state",
             "--config.file", folder / "commwatch.yaml", "--log.level", "error",
             "--web.listen-address", f"127.0.0.1:{PORTS['daemon']}"],
            env={**environment(), **node[1]},
        )  # fmt: skip
        wait_for_snapshot(PORTS["daemon"], time.monotonic() + 30)
        time.sleep(self._seconds)

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()


def memory(nodes: int, rules: str, seconds: int) -> Mapping[str, float]:
    """What a Prometheus needs that scrapes the daemon that runs now under so many names."""
    with tempfile.TemporaryDirectory() as name:
        prometheus = start_prometheus(Path(name), nodes, rules)
        try:
            return asyncio.run(watch(nodes, seconds))
        finally:
            prometheus.terminate()
            prometheus.wait()


def node_rows(found: Mapping[str, Mapping[str, Page]]) -> Iterator[str]:
    """A table of what a scrape of one node brings."""
    yield "| preset | profile | series | page, kB | gzip, kB |"
    yield "| --- | --- | ---: | ---: | ---: |"
    for preset, by_profile in found.items():
        for profile, page in by_profile.items():
            sizes = f"{page.plain_bytes / 1e3:,.0f} | {page.gzip_bytes / 1e3:,.0f}"
            yield f"| {preset} | {profile} | {page.series:,} | {sizes} |"


def fleet_rows(found: Mapping[str, Mapping[str, Page]], each: float | None) -> Iterator[str]:
    """A table of what fleets of each size bring; memory by the bytes that each series of the pages takes."""
    fleets = " / ".join(f"{nodes:,}" for nodes in FLEETS)
    yield f"| preset | profile | series of {fleets} nodes | samples/s | network, gzip, MB/s | memory, GiB |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    for preset, by_profile in found.items():
        for profile, page in by_profile.items():
            series = [nodes * page.series for nodes in FLEETS]
            samples = " / ".join(_short(one / INTERVAL_SECONDS) for one in series)
            network = " / ".join(f"{nodes * page.gzip_bytes / INTERVAL_SECONDS / 1e6:.1f}" for nodes in FLEETS)
            needs = "" if each is None else " / ".join(f"{each * one / 2**30:.1f}" for one in series)
            yield f"| {preset} | {profile} | {' / '.join(map(_short, series))} | {samples} | {network} | {needs} |"


def _short(number: float) -> str:
    return f"{number / 1e6:.1f}M" if number >= 1e6 else f"{number / 1e3:.0f}k"


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", default=list(PRESETS), choices=list(PRESETS), help="default: all")
    parser.add_argument("--copies", type=int, default=1, help="times that a node has its GPUs (default 1)")
    parser.add_argument("--warm", type=float, default=180.0, help="seconds before a page is taken (default 180)")
    parser.add_argument("--prometheus", type=int, default=0, metavar="NODES", help="measure Prometheus with so many")
    parser.add_argument("--profile", default="core", choices=PROFILES, help="that Prometheus scrapes (default core)")
    parser.add_argument("--set", default="core", choices=["core", "extended"], help="its alerts (default core)")
    parser.add_argument("--seconds", type=int, default=2100, help="how long it scrapes (default 2100)")
    given = parser.parse_args()
    times = f"{given.copies} × " if given.copies > 1 else ""
    found = {f"{times}{preset}": measured_pages(preset, given.warm, given.copies) for preset in given.presets}
    print("\n".join(node_rows(found)), end="\n\n", flush=True)
    each = None
    if given.prometheus:
        with daemon(given.presets[0], given.profile, given.warm):
            measured = memory(given.prometheus, given.set, given.seconds)
        print("\n".join(f"{key:28} {value:14,.2f}" for key, value in measured.items()), end="\n\n")
        each = bytes_of_each(measured)
    print("\n".join(fleet_rows(found, each)))


def bytes_of_each(measured: Mapping[str, float]) -> float:
    """What Prometheus needs for each series of the pages, by what ``watch`` gave.

    What it adds itself, series of the scrapes and of the rules, and its own program are in it.
    """
    return measured["memory_mebibytes"] * 2**20 / (measured["nodes"] * measured["series_per_node"])


if __name__ == "__main__":
    main()
