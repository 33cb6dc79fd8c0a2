"""How commwatch diagnose --log answers excerpts of public threads: right, unknown or wrong, in two halves.

``public_logs.log`` holds a thread behind each line ``=== ADDRESS``: the cause that a maintainer or the reporter settled
on, in our words, and a pattern for what names that cause, or its class, with a step that helps. Each excerpt is what
programs wrote, without the names of hosts, users, addresses and paths. At most three threads share a message. The
halves go by a sum over the address. Rules are written with threads of half A only; two wrong answers of half B were put
right after it was counted.

right    The answer fits the pattern; for ``-`` (nothing is wrong, or no settled cause) none is named for certain.
wrong    A cause is named for certain, and the answer does not fit.
unknown  Everything else, also a symptom that is named truly.

Example: python -m benchmarks.public_logs --show wrong
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

sys.path.append(str(Path(__file__).parents[1] / "daemon"))
from commwatch.commands.diagnose_log import LogAnswer, answer_from

Judgement: TypeAlias = Literal["right", "unknown", "wrong"]
JUDGEMENTS: tuple[Judgement, ...] = get_args(Judgement)

THREADS = Path(__file__).with_name("public_logs.log")
UNSETTLED = "unsettled"
"""Set of the threads that ended without a cause."""
_THREAD = re.compile(r"^=== (\S+)\ncause: (.+)\nright: (.+)\n", re.MULTILINE)
_DAY_SECONDS = 86400


@dataclass(frozen=True)
class Thread:
    address: str
    cause: str
    right: str
    text: str

    @property
    def half(self) -> str:
        """``A``, ``B`` or ``UNSETTLED``."""
        return UNSETTLED if self.cause == UNSETTLED else "AB"[hashlib.sha256(self.address.encode()).digest()[0] % 2]


def threads() -> list[Thread]:
    """All, in the order of the file."""
    parts = _THREAD.split(THREADS.read_text(encoding="utf-8"))[1:]
    return [Thread(*parts[at : at + 4]) for at in range(0, len(parts), 4)]


def judge(thread: Thread, answer: LogAnswer) -> Judgement:
    """Judge what was answered to a thread, by what happened first."""
    first = next(iter(answer.incidents), None)
    words = " ".join([first.happened, first.next_step, *first.followed_by, *answer.notes] if first else answer.notes)
    names_cause = (
        first is not None and first.certain and first.category != "other" and first.side not in {"symptom", "unknown"}
    )
    if thread.right == "-":
        return "wrong" if names_cause else "right"
    return "right" if re.search(thread.right, words) else "wrong" if names_cause else "unknown"


def judged() -> Iterator[tuple[Thread, LogAnswer, Judgement]]:
    """Each thread with its answer, read as a log that nobody writes to any more."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "job.log")
        for thread in threads():
            log.write_text(thread.text, encoding="utf-8")
            os.utime(log, (time.time() - _DAY_SECONDS,) * 2)
            answer = answer_from([str(log)])
            yield thread, answer, judge(thread, answer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", choices=JUDGEMENTS, help="print the answers that were judged so")
    args = parser.parse_args()
    found: Counter[tuple[str, Judgement]] = Counter()
    for thread, answer, judgement in judged():
        found[thread.half, judgement] += 1
        if judgement == args.show:
            said = [f"{one.category}: {one.happened} {one.next_step}" for one in answer.incidents[:1]]
            print(f"{thread.half} {thread.address}\n  {thread.cause}\n  {''.join(said) or answer.verdict}")
    for half in sorted({half for half, _ in found}):
        print(f"{half:9}", ", ".join(f"{found[half, one]} {one}" for one in JUDGEMENTS))


if __name__ == "__main__":
    main()
