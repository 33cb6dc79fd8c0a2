"""A real daemon process for the end-to-end tests: started, scraped, signalled, and never left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from support.waiting import PATIENCE_SECONDS, until

ROOT = Path(__file__).parents[2]
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def environment() -> dict[str, str]:
    """The environment of the commands under test: this checkout's packages and none of our settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COMMWATCH_", "NOTIFY_"))}
    return {**kept, "PYTHONPATH": os.pathsep.join([str(ROOT / "daemon"), str(ROOT / "exporters")])}


def command(*arguments: str, timeout: float = PATIENCE_SECONDS) -> subprocess.CompletedProcess[str]:
    """Run a command of commwatch to its end."""
    return subprocess.run(
        [sys.executable, "-m", "commwatch", *arguments],
        env=environment(), text=True, capture_output=True, timeout=timeout, check=False,
    )  # fmt: skip


def children_of(pid: int) -> list[int]:
    """Processes that the main thread of another one has started and that are still there."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_reader(pid: int) -> bool:
    """Whether a process is one that reads, by its name."""
    return Path(f"/proc/{pid}/comm").read_text().startswith("commwatch-")


class Daemon:
    """A running ``commwatch run``."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, state: Path) -> None:
        self.process = process
        self.log_file = log
        self.state = state
        self.address = ""

    def log(self) -> list[dict[str, Any]]:
        """The events logged so far."""
        lines = self.log_file.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def keeps(self, address: str) -> bool:
        """Whether a GPU is expected by the next daemon too: it was here for long enough."""
        learned = [words for one in self.events("learned what to expect") for words in one["what"]]
        return any(address in words and words.endswith("it is expected") for words in learned)

    def events(self, message: str) -> list[dict[str, Any]]:
        """The events with a message."""
        return [event for event in self.log() if event["msg"] == message]

    def get(self, path: str, timeout: float = PATIENCE_SECONDS) -> tuple[int, str]:
        """Status and body of a page."""
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=timeout) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def samples(self) -> Samples:
        """Every series of the page with its value, as Prometheus' own client parses it."""
        families = text_string_to_metric_families(self.get("/metrics")[1])
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families
            for sample in family.samples
        }

    def series(self, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        """The values of one metric by labels; the other lines are not parsed, which would take most of a poll."""
        lines = (line for line in self.get("/metrics")[1].splitlines() if line.startswith(f"commwatch_{name}"))
        families = text_string_to_metric_families("".join(f"{line}\n" for line in lines))
        return {
            tuple(sorted(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
            if sample.name == f"commwatch_{name}"
        }

    def value(self, name: str, **labels: str) -> float | None:
        """The value of a series; None where it is absent."""
        return self.series(name).get(tuple(sorted(labels.items())))

    def count(self, name: str) -> int:
        """How many series a metric has."""
        return len(self.series(name))

    def until(self, condition: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
        """Wait until something holds while the daemon runs; what it gave is returned."""
        # Most conditions read the whole page, which costs the daemon and the test several milliseconds each time.
        return until(condition, seconds, every=0.1, describe=self._end_of_log, meanwhile=self._runs)

    def _runs(self) -> None:
        assert self.process.poll() is None, f"the daemon ended:\n{self.log_file.read_text()}"

    def _end_of_log(self) -> str:
        return self.log_file.read_text()[-3000:]

    def children(self) -> list[int]:
        """Processes that the daemon has started and that are still there."""
        return children_of(self.process.pid)

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout: float = PATIENCE_SECONDS) -> int:
        """Signal the daemon and wait for its end."""
        self.process.send_signal(number)
        return self.process.wait(timeout)


@contextmanager
def running(folder: Path, *arguments: str, state: Path | None = None, **extra: str) -> Iterator[Daemon]:
    """A daemon on a free port, unless told otherwise, that is ready; it and what it started are gone afterwards.

    Args:
        folder: for its state and log.
        arguments: of ``commwatch run``.
        state: another state directory than one in the folder.
        extra: further environment variables.
    """
    state = state or folder / "state"
    listen = () if "--web.listen-address" in arguments else ("--web.listen-address", "127.0.0.1:0")
    log = folder / f"daemon-{time.monotonic_ns()}.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "commwatch", "run", *listen, "--path.state", str(state), *arguments],
            env={**environment(), **extra}, stderr=stream, stdout=stream,
        )  # fmt: skip
    daemon = Daemon(process, log, state)
    children: set[int] = set()
    try:
        daemon.until(lambda: re.search(r'"msg": "ready"', log.read_text()))
        daemon.address = next(iter(daemon.events("serving")[0]["addresses"]), "")
        yield daemon
    finally:
        if process.poll() is None:
            children.update(daemon.children())
            daemon.stop()
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait()
