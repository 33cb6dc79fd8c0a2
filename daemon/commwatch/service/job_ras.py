"""Asks NCCL's RAS about jobs that are suspected to be stuck, once for each suspicion, where it is turned on."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import structlog

from commwatch.children import clean_environment, own_module
from commwatch.config.thresholds import Thresholds
from commwatch.jobs.ras import ANSWER_SECONDS, HARMED, LISTEN_SECONDS, OUTCOMES, RasWord
from commwatch.jobs.stuck import GROUP as STUCK
from commwatch.node.store import Store
from commwatch.workers.one_shot import Answer, NoAnswer, ask
from commwatch_exporters.snapshot import Series, Value

log = structlog.get_logger("commwatch.job_ras")

GROUP: Final = "job_ras"
SILENCE_SECONDS: Final = 3600.0
"""After an answer that was none, as of a job that it may have harmed, neither this job nor this address is asked for
this time; other jobs are."""
INTERVAL_SECONDS: Final = 30.0
"""Between two checks for suspected jobs: longer than an answer takes."""
_DEADLINE_SECONDS: Final = 10.0 + ANSWER_SECONDS + LISTEN_SECONDS
_MOST_ANSWER_BYTES: Final = 1 << 16

Ask: TypeAlias = Callable[..., Coroutine[Any, Any, Answer]]
_Labels: TypeAlias = "tuple[str, ...]"


class _Silence(NamedTuple):
    """A job that is not asked, and where it was asked."""

    until: float
    """Monotonic seconds."""
    job: frozenset[int]
    address: str
    """Empty where it is not known."""


class JobRas:
    """The word of RAS on each job that is suspected now."""

    def __init__(
        self,
        store: Store,
        thresholds: Thresholds,
        procfs: str,
        monotonic: Callable[[], float] = time.monotonic,
        ask: Ask = ask,
    ) -> None:
        store.declare(GROUP, holds=["commwatch_job_ras_ranks", "commwatch_job_ras_behind"])
        self._store = store
        self._after = thresholds.job_stuck_suspected_seconds
        self._procfs = procfs
        self._monotonic = monotonic
        self._ask = ask
        self._words: dict[frozenset[int], tuple[RasWord, float]] = {}
        """By job the word, and when it was asked, monotonic seconds."""
        self._queries: Counter[str] = Counter()
        self._silences: tuple[_Silence, ...] = ()

    def take_over(self, earlier: JobRas) -> None:
        """Keep what an engine learned that was stopped, and its silence."""
        self._words, self._queries, self._silences = earlier._words, earlier._queries, earlier._silences

    def word_on(self, pids: frozenset[int], since: float = float("-inf")) -> RasWord | None:
        """The answer of RAS on the suspected job that has one of these processes; None where it was not asked.

        Args:
            pids: of the job.
            since: monotonic seconds; an earlier answer does not count.
        """
        return next((word for job, (word, at) in self._words.items() if job & pids and at >= since), None)

    async def run(self) -> None:
        """Ask about one job that is suspected and was not asked about."""
        suspected = dict(self._suspected())
        self._words = {job: word for job, word in self._words.items() if any(job & other for other in suspected)}
        for job in suspected:
            if self.word_on(job) is None and not self._is_silent(job):
                at, word = self._monotonic(), await self._ask_about(job)
                self._queries[word.outcome] += 1
                log.info("asked RAS about a job that is suspected to be stuck", outcome=word.outcome, words=word.words)
                if word.outcome == "silent":
                    until = max((one.until for one in self._silences), default=self._monotonic())
                    self._silences += (_Silence(until, job, ""),)
                    break
                self._words[job] = word, at
                if word.outcome in HARMED:
                    self._silences += (_Silence(self._monotonic() + SILENCE_SECONDS, job, word.address),)
                break
        self._show(suspected)

    def _is_silent(self, job: frozenset[int]) -> bool:
        now = self._monotonic()
        self._silences = tuple(one for one in self._silences if now < one.until)
        return any(one.job & job for one in self._silences)

    async def _ask_about(self, job: frozenset[int]) -> RasWord:
        silent = ",".join(sorted({one.address for one in self._silences}))
        command = own_module("commwatch.jobs.ras", self._procfs, silent, *map(str, sorted(job)))
        try:
            answer = await self._ask(
                command, clean_environment(os.environ), _DEADLINE_SECONDS, limit=_MOST_ANSWER_BYTES
            )
            return msgspec.json.decode(answer.output, type=RasWord)
        except NoAnswer:
            return RasWord("no_answer")
        except (ValueError, RecursionError):
            log.warning("the process that asks RAS failed", error=answer.last_error)
            return RasWord("unreadable")

    def _suspected(self) -> Iterator[tuple[frozenset[int], _Labels]]:
        """The processes of each suspected job, and the labels of its lowest GPU."""
        block = self._store.get(STUCK, "")
        for (metric, labels), seconds in zip(block.layout.series, block.values, strict=True) if block else ():
            if metric != "commwatch_job_stuck_seconds" or seconds is None or seconds < self._after:
                continue
            jobs, on = self._store.jobs, self._store.occupants
            named = {jobs.get(pid, 0) for pid in on.get(labels[1], ())}
            if pids := frozenset(pid for pids in on.values() for pid in pids if jobs.get(pid, 0) in named):
                yield pids, labels

    def _show(self, suspected: dict[frozenset[int], _Labels]) -> None:
        now = self._monotonic()
        shown: dict[Series, Value] = {
            ("commwatch_nccl_ras_queries_total", (outcome,)): self._queries[outcome] for outcome in OUTCOMES
        }
        places = {
            pid: block.layout.series[0][1][:2]
            for device, pids in self._store.occupants.items()
            if (block := self._store.get("nvml_gpu", device)) is not None and block.layout.series
            for pid in pids
        }
        for job, labels in suspected.items():
            if (word := self.word_on(job)) is not None:
                shown |= {("commwatch_job_ras_ranks", (*labels, state)): n for state, n in word.states().items()}
                for pid in word.behind_pids:
                    if pid in places:
                        shown["commwatch_job_ras_behind", places[pid]] = 1
        self._store.show(GROUP, "", shown, now)
