"""What ``commwatch diagnose --log`` says of texts, and a source of the daemon over a folder of logs."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from commwatch.commands.diagnose_log import LogAnswer, answer_from
from commwatch.jobs.logs.source import LOOK_SECONDS, NcclLogsSource
from commwatch.readings import Batch


def answer_to(*texts: str | bytes) -> LogAnswer:
    """The answer about these logs, the first of which is ``0.log``."""
    with TemporaryDirectory() as folder:
        files = [Path(folder, f"{number}.log") for number in range(len(texts))]
        for file, text in zip(files, texts, strict=True):
            file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return answer_from([str(file) for file in files])


def causes(*texts: str | bytes) -> list[str]:
    """The categories that the answer blames, incident by incident."""
    return [one.category for one in answer_to(*texts).incidents]


class LogFolder:
    """A folder of logs and a source over it; the clocks stand until they are moved."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 0.0
        self.began = os.stat(folder).st_mtime
        self.resume = b""

    def start(self, *names: str, hosts: tuple[str, ...] = ()) -> NcclLogsSource:
        """A new process of the source; it goes on from what the one before told."""
        self.source = NcclLogsSource(
            [f"{self.folder}/{name}" for name in names or ("*.log",)],
            hosts,
            self.resume,
            host="gpu7.example.org",
            clock=lambda: self.began + self.now,
            monotonic=lambda: self.now,
        )
        self.source.open(lambda device: None, frozenset(), None)
        return self.source

    def write(self, text: str, name: str = "job.log", mode: str = "a") -> None:
        with (self.folder / name).open(mode, newline="") as file:
            file.write(text)

    def run(self, seconds: float = LOOK_SECONDS) -> Batch:
        """One run, at a time in seconds."""
        self.now += seconds
        batch = self.source.collect("nccl_logs")
        self.resume = batch.resume or self.resume
        return batch

    def count(self, seconds: float = LOOK_SECONDS) -> dict[str, int]:
        """Lines by category of one run."""
        counts = Counter[str]()
        for one in self.run(seconds).log_errors:
            counts[one.category] += one.count
        return dict(counts)
