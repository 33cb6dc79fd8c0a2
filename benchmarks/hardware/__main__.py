"""Measure on a machine with an NVIDIA GPU all that it can show, in eight minutes at most and without a network.

``make hardware`` runs it. It reads the driver with the real readers, records the node, runs NCCL between ranks on the
first GPU, measures what a busy GPU feels of the daemon, and runs tests/hardware. Each section is a process of its own
with a deadline. The results are OUT/hardware.json, OUT/hardware.txt, OUT/node.cwrec and a log of each section.

Exit codes: 0 each section ran or has a reason not to; 1 one crashed or hung; 2 wrong use; 3 there is no driver.

Examples: python -m benchmarks.hardware --out results
          python -m benchmarks.hardware --out tried --simulate h100x8 --pace 0.1
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "daemon"), str(ROOT / "exporters")]

try:
    from benchmarks.hardware.expected import compare
    from benchmarks.hardware.place import REASON, CannotRun, Place, report
    from benchmarks.hardware.run import Outcome, Section, run_child, why_not
    from benchmarks.hardware.text import summary

    from commwatch import __version__
    from commwatch.errors import ExitCode
except ImportError as missing:
    sys.exit(
        f"{sys.executable}: {missing}. `make run` installs what commwatch needs, once, with a network; or name another "
        "interpreter: make hardware PYTHON=..."
    )

if TYPE_CHECKING:
    from typing import NoReturn

SECTIONS = (
    Section("driver", "driver:driver", 40),
    Section("events", "driver:events", 10),
    Section("pcie", "driver:pcie", 20, uses_gpu=True),
    Section("recording", "programs:recording", 75),
    Section("torch", "ranks:torch", 75, uses_gpu=True),
    Section("probes", "ranks:probes", 150, uses_gpu=True, needs_torch=True),
    Section("waiting", "ranks:waiting", 60, uses_gpu=True, needs_torch=True),
    Section("jitter", "step:jitter", 75, uses_gpu=True),
    Section("tests", "programs:suite", 240, uses_gpu=True, needs_torch=True),
)
WHOLE_SECONDS = 460.0
"""Of all sections together: the later ones have what is left."""
_SHORTEST_SECONDS = 5.0


def main() -> None:
    """Run all sections, or one in this process."""
    given = _arguments()
    if given.section:
        _run_section(given)
    sys.exit(_run_all(given))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hardware", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the results; new, or empty")
    parser.add_argument("--torch-python", default="", help="interpreter that has torch (default: ours, else python3)")
    parser.add_argument("--simulate", default="", metavar="PRESET", help="try it on a simulated node")
    parser.add_argument("--pace", type=float, default=1.0, help="share of each duration, to try it (default 1)")
    parser.add_argument("--section", choices=[one.name for one in SECTIONS], help=argparse.SUPPRESS)
    parser.add_argument("--started-at", type=float, default=time.time() - 3600, help=argparse.SUPPRESS)
    return parser.parse_args()


def _run_section(given: argparse.Namespace) -> NoReturn:
    """Run one section in this process; its facts are the lines of standard output."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("over its deadline"))  # ends children in its ``finally`` blocks
    section = next(one for one in SECTIONS if one.name == given.section)
    module, _, name = section.function.partition(":")
    function: Callable[[Place], None] = getattr(import_module(f"benchmarks.hardware.{module}"), name)
    place = Place(given.out, given.simulate, given.pace, given.torch_python, given.started_at)
    try:
        function(place)
    except CannotRun as error:
        report(**{REASON: str(error)})
    sys.exit(0)


def _run_all(given: argparse.Namespace) -> int:
    out: Path = given.out.absolute()
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise OSError(0, "is not empty; name a new folder")
    except OSError as error:
        print(f"--out {given.out}: {error.strerror}", file=sys.stderr)
        return ExitCode.WRONG_USE
    ends = time.monotonic() + WHOLE_SECONDS
    facts: dict[str, Any] = {}
    outcomes: dict[str, Outcome] = {}
    command = [
        sys.executable, "-m", "benchmarks.hardware", "--out", str(out), "--pace", str(given.pace),
        "--simulate", given.simulate, "--torch-python", given.torch_python or _torch_python(),
        "--started-at", str(given.started_at),
    ]  # fmt: skip
    for section in SECTIONS:
        limit = min(section.seconds, ends - time.monotonic())
        reason = why_not(section, facts, outcomes) or ("no time is left" if limit < _SHORTEST_SECONDS else "")
        print(f"{section.name} ... ", end="", flush=True)
        outcome = Outcome({}, reason) if reason else run_child(
            section.name, [*command, "--section", section.name], limit, out
        )  # fmt: skip
        print(f"{outcome.reason or 'ran'} ({outcome.seconds:.0f} s)", flush=True)
        facts |= outcome.facts
        outcomes[section.name] = outcome
    return _write(out, facts, outcomes, given.simulate)


def _torch_python() -> str:
    """``python3`` where it has torch and our interpreter has none; else empty."""
    asks = ["-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"]
    other = shutil.which("python3")
    if other is None or subprocess.run([sys.executable, *asks]).returncode == 0:
        return ""
    return other if subprocess.run([other, *asks]).returncode == 0 else ""


def _write(out: Path, facts: dict[str, Any], outcomes: Mapping[str, Outcome], simulated: str) -> int:
    """Write and print the results; returns the exit code."""
    rows = list(compare(facts)) if "gpus" in facts else []
    document = {
        "commwatch": __version__, "simulated": simulated, "kernel": os.uname().release, "machine": os.uname().machine,
        "python": sys.version.split()[0], "cpus": os.cpu_count(),
        "sections": {name: asdict(one) for name, one in outcomes.items()},
        "comparison": [row._asdict() for row in rows],
    }  # fmt: skip
    (out / "hardware.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    text = summary(facts, outcomes, rows, simulated)
    (out / "hardware.txt").write_text(text, encoding="utf-8")
    print(f"\n{text}")
    if "gpus" not in facts:
        return ExitCode.NOT_KNOWN
    print(
        f"Read {out}/hardware.txt and commwatch record --list {out}/node.cwrec; then send hardware.json and node.cwrec."
    )
    return ExitCode.FOUND if any(one.crashed for one in outcomes.values()) else ExitCode.OK


if __name__ == "__main__":
    main()
