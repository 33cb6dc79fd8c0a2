"""How many of a fixed sample of small mistakes in the code the suite finds; ``make mutants`` runs it.

First the suite runs once over a copy in which each place of the sample reports the test that reaches it, in whatever
process. Then each mistake is made by itself, in a copy, and the tests that reach it run until the first one fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from xml.etree import ElementTree

from mutation.sites import Mutation, sample

ROOT = Path(__file__).parents[2]
SEED = "1"
PROCESSES = 2
LONGEST_SECONDS = 45.0
"""Of the tests of one mutant together, as they took without it; the quickest of those that reach it are taken."""
PATIENCE = 6.0
"""Times as long, and half a minute: a run that takes longer hangs because of the mistake."""
_REPORTER = '''"""Writes which test reaches which mutation."""
import os

_seen = set()


def at(number):
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    if (number, test) not in _seen:
        _seen.add((number, test))
        with open({file!r}, "a", encoding="utf-8") as reached:
            reached.write(f"{{number}}\\t{{test}}\\n")
'''


@dataclass(frozen=True)
class Outcome:
    """What became of one mutant."""

    mutation: Mutation
    verdict: str
    """``killed``, ``survived`` or ``unreached``."""
    by: str
    """The test that failed first, or how many tests were run."""
    seconds: float

    def row(self) -> str:
        """As a line of the report."""
        one = self.mutation
        change = f"{_short(one.before)} -> {_short(one.after) or 'nothing'}"
        return f"{self.verdict}\t{one.path}:{one.line}\t{one.function}\t{change}\t{self.by}\t{self.seconds:.1f}"


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 60 else f"{words[:57]}..."


def _copy(folder: Path) -> Path:
    """The files that git tracks or would track, as they are now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def _pytest(folder: Path, *arguments: str, seconds: float | None = None) -> tuple[int | None, str]:
    """Exit code and output of pytest in a copy; None where it took too long. What it started is gone afterwards."""
    packages = os.pathsep.join(str(folder / part) for part in ("daemon", "exporters"))
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *arguments],
        cwd=folder, env={**os.environ, "CI": "true", "PYTHONPATH": packages, "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None, ""
    return process.returncode, output


def _instrument(folder: Path, mutations: Sequence[Mutation], reached: Path) -> None:
    """Have each place of the sample report that it is reached."""
    for tree in ("daemon", "exporters"):
        (folder / tree / "mutation_reached.py").write_text(_REPORTER.format(file=str(reached)))
    by_file: dict[str, list[tuple[int, Mutation]]] = {}
    for number, one in enumerate(mutations):
        by_file.setdefault(one.path, []).append((number, one))
    for path, places in by_file.items():
        source = (folder / path).read_bytes()
        inserted = [
            edit
            for number, one in places
            for edit in (
                (one.around[0], 1, b'(__import__("mutation_reached").at(%d), ' % number),
                (one.around[1], 0, b")[1]"),
            )
        ]
        for at, _, text in sorted(inserted, reverse=True):
            source = source[:at] + text + source[at:]
        (folder / path).write_bytes(source)


Timed = dict[str, float]
"""Tests with their seconds, the quickest first."""


def _reaching(folder: Path, mutations: Sequence[Mutation], suite: Sequence[str]) -> list[Timed]:
    """The tests that reach each mutation and pass without it. A run that is there already is not made again."""
    reached, report = folder / "reached.tsv", folder / "report.xml"
    if not report.exists():
        reached.touch()
        _instrument(folder, mutations, reached)
        arguments = ("-n", str(PROCESSES), "--dist", "loadfile", f"--junitxml={report}", "-o", "junit_family=xunit1")
        code, output = _pytest(folder, *arguments, *suite)
        print(output.strip().splitlines()[-1], flush=True)
        assert code in (0, 1), output
    seconds: dict[str, float] = {}
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 - pytest's own report
        if case.find("failure") is None and case.find("error") is None and case.find("skipped") is None:
            name = "::".join((case.get("file", ""), *_classes(case), case.get("name", "")))
            seconds[name] = float(case.get("time", "0"))
    found: list[set[str]] = [set() for _ in mutations]
    imported = set()
    for line in reached.read_text(encoding="utf-8").splitlines():
        number, test = line.split("\t", 1)
        if test:
            found[int(number)].add(test.rpartition(" ")[0])
        else:
            imported.add(int(number))  # what runs while a module is imported is there for all tests
    slowest: dict[str, float] = {}
    for name, took in seconds.items():
        slowest[_file(name)] = max(took, slowest.get(_file(name), 0.0))

    def order(tests: set[str]) -> Timed:
        # What a file makes once counts for the test that came first: so files with a slow test are the last ones.
        known = tests & seconds.keys()
        return {one: seconds[one] for one in sorted(known, key=lambda one: (slowest[_file(one)], one))}

    return [
        order(tests) | (order(seconds.keys() - tests) if number in imported else {})
        for number, tests in enumerate(found)
    ]


def _file(test: str) -> str:
    return test.partition("::")[0]


def _quickest(tests: Timed) -> Timed:
    """As many as the limit has room for."""
    taken: Timed = {}
    for test, seconds in tests.items():
        if not taken or sum(taken.values()) + seconds <= LONGEST_SECONDS:
            taken[test] = seconds
    return taken


def _classes(case: ElementTree.Element) -> list[str]:
    """The class of a test in pytest's report, where it has one."""
    module = case.get("file", "").removesuffix(".py").replace("/", ".")
    return [name for name in case.get("classname", "").removeprefix(module).split(".") if name]


def _judge(folder: Path, mutation: Mutation, reaching: Timed) -> Outcome:
    """Make one mistake, and run the tests that reach it."""
    if not reaching:
        return Outcome(mutation, "unreached", "", 0.0)
    file = folder / mutation.path
    source = file.read_bytes()
    file.write_bytes(mutation.apply(source))
    tests = _quickest(reaching)
    chosen = folder / "tests.txt"
    chosen.write_text("\n".join(tests), encoding="utf-8")
    started = time.monotonic()
    try:
        seconds = 30.0 + PATIENCE * sum(tests.values())
        code, output = _pytest(folder, "-x", "--tb=no", "-rfE", f"@{chosen}", seconds=seconds)
    finally:
        file.write_bytes(source)
    took = time.monotonic() - started
    if code is None:
        return Outcome(mutation, "killed", "took too long", took)
    if code == 0:
        return Outcome(mutation, "survived", f"{len(tests)} of {len(reaching)} tests", took)
    failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return Outcome(mutation, "killed", (failed or [f"pytest ended with {code}"])[0].partition(" - ")[0], took)


def main() -> int:
    """Print the outcome of each mutant and the share that was killed."""
    parser = argparse.ArgumentParser(prog="mutation", description=__doc__, allow_abbrev=False)
    parser.add_argument("--sample", type=int, default=80, metavar="N", help="mutants (%(default)s)")
    parser.add_argument("--seed", default=SEED, help="which sample (%(default)s)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="also write the outcomes there, tab-separated")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="for the copies")
    parser.add_argument("--only", default="", metavar="PATH", help="of the sample those in this file alone")
    parser.add_argument("suite", nargs="*", help="tests, instead of all")
    asked = parser.parse_args()

    mutations = sample(ROOT, asked.sample, asked.seed)
    mapped = asked.work / "map"
    reaching = _reaching(mapped if mapped.exists() else _copy(mapped), mutations, asked.suite)
    places: SimpleQueue[Path] = SimpleQueue()
    for number in range(PROCESSES):
        places.put(_copy(asked.work / str(number)))

    def judge(pair: tuple[Mutation, Timed]) -> Outcome:
        folder = places.get()
        try:
            outcome = _judge(folder, *pair)
        finally:
            places.put(folder)
        print(outcome.row(), flush=True)
        return outcome

    chosen = [pair for pair in zip(mutations, reaching, strict=True) if asked.only in pair[0].path]
    with ThreadPoolExecutor(PROCESSES) as pool:
        outcomes = list(pool.map(judge, chosen))
    counts = Counter(one.verdict for one in outcomes)
    if asked.report:
        asked.report.write_text("".join(f"{one.row()}\n" for one in outcomes), encoding="utf-8")
    print(", ".join(f"{verdict} {counts[verdict]}" for verdict in ("killed", "survived", "unreached")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
