"""A daemon of a simulated node on a clock of its own; its cycles take as long as is estimated of real ones."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from commwatch.findings.finding import Finding
from commwatch.probes.gate.budget import DAY_SECONDS, first_guess_seconds, used
from commwatch.probes.plan import CyclePlan, CycleResult
from support.simulated_daemon import SimulatedDaemon


class SteppedNode(SimulatedDaemon):
    """The shipped probes at their shipped intervals; each cadence shorter than a step is that of the steps."""

    step_seconds = 15.0

    def __init__(self, preset: str, folder: Path, patched: pytest.MonkeyPatch, faults: str) -> None:
        self.cycles: list[tuple[float, CyclePlan]] = []
        """Seconds since the boot, and what ran then."""
        super().__init__(preset, folder, patched, faults=faults, booted_at=1_700_000_000.0)
        self.start()

    def outcome(self, plan: CyclePlan) -> CycleResult:
        result = super().outcome(plan)
        self.cycles.append((self.time, plan))
        return msgspec.structs.replace(
            result, occupied_seconds=first_guess_seconds(len(plan.steps)) if plan.gpus else 0
        )

    def until(self, minutes: float, step: float = step_seconds) -> None:
        while self.time < 60.0 * minutes:
            self.step_to(self.time + step)

    def opened(self, code: str, component: str = "") -> float | None:
        """Minutes since the boot at which a finding opened first; None where it did not."""
        found = (one for one in self.changes if one.event == "opened" and one.code == code)
        return next((one.seconds / 60 for one in found if component in one.component), None)

    def finding(self, code: str) -> Finding:
        """The only open finding of a code that stands by itself."""
        [found] = [one for one in self.verdict.findings if one.code == code]
        return found

    def ran(self, probe: str) -> list[float]:
        """Minutes since the boot at which a probe ran."""
        return [at / 60 for at, plan in self.cycles if plan.probe == probe]

    def occupied_share(self) -> float:
        """Of the GPUs' time of a day, what all probes of the last day took."""
        records = [probe.record for probe in self.engine.probing._probes.values()]
        seconds = used([one for record in records for one in record.history.occupied], time.time(), DAY_SECONDS)
        return seconds / len(self.engine.probing._node.gpus) / DAY_SECONDS


@contextmanager
def stepped(preset: str, faults: str, folder: Path) -> Iterator[SteppedNode]:
    """A node that boots now; driver library and clocks are put back afterwards.

    Args:
        preset: its name.
        faults: YAML; times are since the boot.
        folder: for its files and its state.
    """
    with pytest.MonkeyPatch.context() as patched:
        node = SteppedNode(preset, folder, patched, faults)
        try:
            yield node
        finally:
            node.close()
