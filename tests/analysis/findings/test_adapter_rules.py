"""Network adapters: those without a driver, and what drivers wrote into the kernel log, by how grave it is."""

from __future__ import annotations

from commwatch.findings.codes import CODES
from support.facts import Numbers, before, codes_of, facts_of, seen_by
from support.passes import in_one_pass

EVENTS = "commwatch_adapter_events_total"
ADDRESS = "0000:86:00.0"
HOUR = 3600.0
OTHER: Numbers = {EVENTS: {("0000:17:00.0", "pcie_limited"): 1.0}}
"""Of another adapter, so that a series of this metric was there before."""


def logged(event: str, count: float) -> Numbers:
    return {EVENTS: {**OTHER[EVENTS], (ADDRESS, event): count}}


@in_one_pass(
    "event, code, meaning",
    [
        ("firmware_fatal", "adapter_failed", "the firmware has failed"),
        ("health_lost", "adapter_failed", "the adapter does not answer its driver"),
        ("recovery_failed", "adapter_failed", "the driver could not recover the adapter"),
        ("slot_unavailable", "adapter_failed", "the adapter is gone from its PCIe slot"),
        ("health_critical", "adapter_failed", "the firmware reports a critical state"),
        ("health_issue", "adapter_troubled", "the firmware reports an error"),
        ("command_timeout", "adapter_troubled", "the firmware did not answer a command"),
        ("firmware_reset", "adapter_troubled", "the firmware was reset after an error"),
        ("adapter_hot", "adapter_troubled", "the adapter is too hot"),
        ("module_hot", "adapter_troubled", "the cable module is too hot"),
        ("module_fault", "adapter_troubled", "the cable module reports a fault"),
        ("transmit_timeout", "adapter_troubled", "a transmit queue has hung"),
        ("device_reset", "adapter_noted", "the driver resets the adapter"),
        ("slot_power_low", "adapter_noted", "the PCIe slot advertises too little power"),
        ("pcie_limited", "adapter_noted", "the PCIe link carries less than the adapter can"),
    ],
)
def test_an_event_is_found_for_an_hour_at_its_adapter(event: str, code: str, meaning: str) -> None:
    """Also the first one of all, which comes with its series; each with its meaning in words."""
    [match] = seen_by("adapter_failed", facts_of(logged(event, 1.0), {10.0: OTHER}))
    assert codes_of([match]) == [(code, f"adapter/{ADDRESS}")]
    assert meaning in match.evidence[0].what

    now = logged(event, 2.0)
    history = {HOUR + 100: before(now, logged(event, 1.0)), HOUR: now}
    assert seen_by("adapter_failed", facts_of(now, history)) == []


def test_an_adapter_has_the_name_of_its_rdma_device_or_interface() -> None:
    """Which people know, before its address; the address alone where it has lost both."""
    port: Numbers = {"commwatch_rdma_port_info": {("mlx5_3", "1", *[""] * 5, ADDRESS, "eth3"): 1.0}}
    interface: Numbers = {"commwatch_ethernet_info": {("eth3", ADDRESS, "", ""): 1.0}}
    cases: list[tuple[Numbers, str]] = [
        ({**port, **interface}, f"adapter mlx5_3 ({ADDRESS})"),
        (interface, f"adapter eth3 ({ADDRESS})"),
        ({}, f"adapter {ADDRESS}"),
    ]
    for named, words in cases:
        [match] = seen_by("adapter_failed", facts_of({**logged("firmware_fatal", 1.0), **named}, {10.0: OTHER}))
        assert match.component.words == words


def test_the_gravity_of_an_event_is_the_severity_of_its_finding() -> None:
    """A failed adapter pages, one with trouble does not, and what is only noted is for the record."""
    severities = {name: CODES[name].severity for name in ("adapter_failed", "adapter_troubled", "adapter_noted")}

    assert severities == {"adapter_failed": "critical", "adapter_troubled": "warning", "adapter_noted": "info"}


def test_events_of_one_gravity_are_one_finding() -> None:
    """Firmware and health of one adapter are one fault with two facts."""
    now: Numbers = {EVENTS: {**OTHER[EVENTS], (ADDRESS, "firmware_fatal"): 1.0, (ADDRESS, "health_lost"): 3.0}}

    [match] = seen_by("adapter_failed", facts_of(now, {10.0: OTHER}))
    assert [one.value for one in match.evidence] == [1.0, 3.0]


def test_what_is_not_known_or_not_read_is_no_finding() -> None:
    """An event of a later version, the rest of too many, and no series at all."""
    assert seen_by("adapter_failed", facts_of(logged("other", 1.0), {10.0: OTHER})) == []
    assert seen_by("adapter_failed", facts_of({})) == []


@in_one_pass("flag, found", [(1.0, [ADDRESS]), (0.0, []), (None, [])])
def test_an_adapter_without_a_driver_is_named_by_its_address(flag: float | None, found: list[str]) -> None:
    """The source says so only where a like adapter has a driver."""
    info = {(ADDRESS, "nic", "0000:85:00.0", "0", "0x15b3", "0x1021"): 1.0}
    page: Numbers = {} if flag is None else {"commwatch_pcie_adapter_unbound": {(ADDRESS,): flag}}
    page = {"commwatch_pcie_device_info": info, **page}

    assert [one.component.key for one in seen_by("adapter_without_driver", facts_of(page))] == found
    assert CODES["adapter_without_driver"].severity == "warning"
