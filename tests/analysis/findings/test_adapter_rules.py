"""Network adapters: what their drivers wrote into the kernel log, by how grave it is."""

from __future__ import annotations

import pytest

from commwatch.findings.rules.adapters import ADAPTERS, events, of_gravity
from commwatch.sources.adapter_lines import ADAPTER_EVENTS
from support.facts import Numbers, before, codes_of, facts_of, seen_by

EVENTS = "commwatch_adapter_events_total"
ADDRESS = "0000:86:00.0"
HOUR = 3600.0
OTHER: Numbers = {EVENTS: {("0000:17:00.0", "pcie_limited"): 1.0}}
"""Of another adapter, so that a series of this metric was there before."""


def logged(event: str, count: float) -> Numbers:
    return {EVENTS: {**OTHER[EVENTS], (ADDRESS, event): count}}


@pytest.mark.parametrize(
    ("gravity", "code", "severity"),
    [
        ("critical", "adapter_failed", "critical"),
        ("warning", "adapter_troubled", "warning"),
        ("info", "adapter_noted", "info"),
    ],
)
def test_an_event_is_found_for_an_hour_at_its_adapter(gravity: str, code: str, severity: str) -> None:
    """Also the first one of all, which comes with its series; each with its meaning in words."""
    assert {one.name: one.severity for one in ADAPTERS.codes}[code] == severity
    for event in of_gravity(gravity):  # type: ignore[arg-type]  # one of the three
        [sighting] = seen_by(events, facts_of(logged(event, 1.0), {10.0: OTHER}))
        assert codes_of([sighting]) == [(code, f"adapter/{ADDRESS}")]
        assert ADAPTER_EVENTS[event].meaning in sighting.evidence[0].what

        now = logged(event, 2.0)
        history = {HOUR + 100: before(now, logged(event, 1.0)), HOUR: now}
        assert seen_by(events, facts_of(now, history)) == []


def test_events_of_one_gravity_are_one_finding() -> None:
    """Firmware and health of one adapter are one fault with two facts."""
    now: Numbers = {EVENTS: {**OTHER[EVENTS], (ADDRESS, "firmware_fatal"): 1.0, (ADDRESS, "health_lost"): 3.0}}

    [sighting] = seen_by(events, facts_of(now, {10.0: OTHER}))
    assert [one.value for one in sighting.evidence] == [1.0, 3.0]


def test_what_is_not_known_or_not_read_is_no_finding() -> None:
    """An event of a later version, the rest of too many, and no series at all."""
    assert seen_by(events, facts_of(logged("other", 1.0), {10.0: OTHER})) == []
    assert seen_by(events, facts_of({})) == []
