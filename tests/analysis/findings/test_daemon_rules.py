"""The daemon about itself: what it cannot read, what hangs, and what it does not believe."""

from __future__ import annotations

import pytest

from commwatch.findings.codes import CODES
from commwatch.findings.finding import Evidence
from commwatch.findings.rules.daemon import OF_JOB_FILES
from commwatch.node.starvation import LATE_SECONDS, WAITED_SHARE
from commwatch.workers.sources import SOURCES
from support.facts import NOW, Numbers, before, codes_by, codes_of, facts_of, seen_by, shipped
from support.passes import in_one_pass

NAME = ("nvml_gpu",)
HOUR = 3600.0
LAST = "commwatch_collector_last_success_timestamp_seconds"
ERRORS, RESTARTS = "commwatch_collector_errors_total", "commwatch_worker_restarts_total"
STEPS, RULE_ERRORS = "commwatch_clock_steps_total", "commwatch_finding_rule_errors_total"
ANOMALY = "commwatch_counters_anomaly"


def collector(success: float | None, age: float | None = None, interval: float | None = 10.0) -> Numbers:
    """A collector as the page has it."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for metric, value in (
        ("commwatch_collector_success", success),
        (LAST, None if age is None else NOW - age),
        ("commwatch_collector_interval_seconds", interval),
    ):
        if value is not None:
            found[metric] = {NAME: value}
    return found


def test_a_collector_that_fails_for_ten_minutes_is_told_with_its_reasons() -> None:
    """Not one that failed lately, or that rests."""
    reasons = {(*NAME, "no_permission"): 5.0, (*NAME, "deadline"): 2.0}
    now = {**collector(0.0, 600.0), ERRORS: reasons}
    [match] = seen_by(
        "collector_failing", facts_of(now, {60.0: before(now, {ERRORS: {(*NAME, "no_permission"): 3.0}})})
    )

    assert codes_of([match]) == [("collector_failing", "daemon/nvml_gpu")]
    assert match.evidence == (
        Evidence("since all was read", 600.0, "seconds", 600.0, "collector_failing_for_seconds"),
        Evidence("failed readings in the last hour: no permission", 3.0),
    )
    assert seen_by("collector_failing", facts_of(collector(0.0, 599.0))) == []
    assert seen_by("collector_failing", facts_of(collector(1.0, 5.0))) == []
    assert seen_by("collector_failing", facts_of(collector(None, 9000.0))) == []


def test_a_collector_that_never_read_anything_is_told() -> None:
    """It has no time at which all was read."""
    [match] = seen_by("collector_failing", facts_of(collector(0.0)))

    assert match.evidence == (Evidence("last time that all was read", "never since the daemon started"),)


@pytest.mark.parametrize(
    ("age", "interval", "key"),
    [(301.0, 10.0, "data_stale_seconds"), (1801.0, 600.0, "data_stale_intervals")],
)
def test_data_are_old_after_five_minutes_and_three_intervals(age: float, interval: float, key: str) -> None:
    """Of a collector that says that all is well; one that fails has a finding of its own, one that rests none."""
    [match] = seen_by("collector_stale", facts_of(collector(1.0, age, interval)))

    assert codes_of([match]) == [("collector_stale", "daemon/nvml_gpu")]
    assert (match.evidence[0].value, match.evidence[0].threshold_origin) == (age, key)
    assert seen_by("collector_stale", facts_of(collector(1.0, age - 1.0, interval))) == []
    assert seen_by("collector_stale", facts_of(collector(0.0, age, interval))) == []
    assert seen_by("collector_stale", facts_of(collector(None, age, interval))) == []
    assert seen_by("collector_stale", facts_of(collector(1.0, age, None))) == []


def test_a_process_that_hangs_is_told() -> None:
    """By the worker that it is one of."""
    name = "commwatch_worker_stuck"
    now: Numbers = {name: {("nvml",): 1.0, ("host",): 0.0}}

    assert codes_by("worker_stuck", facts_of(now)) == [("worker_stuck", "daemon/nvml")]
    assert seen_by("worker_stuck", facts_of({})) == []


def test_a_process_that_hangs_at_a_file_server_drains_no_node() -> None:
    """The one that reads job files, and opens no driver."""
    assert {row.reader.name for row in SOURCES.values() if row.of_jobs and not row.needs_gpus} == {OF_JOB_FILES}
    (of_jobs, of_driver) = seen_by(
        "worker_stuck", facts_of({"commwatch_worker_stuck": {("jobs",): 1.0, ("nvml",): 1.0}})
    )

    assert "file server" in of_jobs.next_step
    assert of_driver.next_step == ""


def test_a_worker_that_fails_again_and_again_is_told() -> None:
    """More than twice in an hour, by whatever reason; not one that is replaced on purpose."""

    def after(ago: float = 10.0, **rises: float) -> list[tuple[str, str]]:
        now: Numbers = {RESTARTS: {("nvml", reason): 10.0 for reason in rises}}
        risen: Numbers = {RESTARTS: {("nvml", reason): rise for reason, rise in rises.items()}}
        return codes_by("worker_restarting", facts_of(now, {ago + 5.0: before(now, risen), ago: now}))

    assert after(crashed=2.0, deadline=1.0) == [("worker_restarting", "daemon/nvml")]
    assert after(crashed=1.0, deadline=1.0) == []
    assert after(rejoined=9.0) == []
    assert after(HOUR, crashed=3.0) == []


def test_the_first_replacement_counts() -> None:
    """A series of the daemon's own that begins with its first event has had that event."""
    first: Numbers = {RESTARTS: {("rdma", "crashed"): 1.0}}
    later: Numbers = {RESTARTS: {("rdma", "crashed"): 1.0, ("nvml", "deadline"): 1.0}}
    now: Numbers = {RESTARTS: {("rdma", "crashed"): 1.0, ("nvml", "deadline"): 3.0}}

    assert codes_by("worker_restarting", facts_of(now, {60.0: first, 30.0: later})) == [
        ("worker_restarting", "daemon/nvml")
    ]


def test_a_configuration_that_was_refused_is_told() -> None:
    """Until one is taken."""
    name = "commwatch_config_last_reload_successful"

    assert codes_by("configuration_refused", facts_of({name: {(): 0.0}})) == [
        ("configuration_refused", "daemon/configuration")
    ]
    assert seen_by("configuration_refused", facts_of({name: {(): 1.0}})) == []
    assert seen_by("configuration_refused", facts_of({})) == []


def test_a_step_of_the_clock_is_told_for_an_hour() -> None:
    """It concerns the whole node."""
    now: Numbers = {STEPS: {(): 3.0}}
    two: Numbers = {STEPS: {(): 2.0}}

    assert codes_by("clock_stepped", facts_of(now, {10.0: two})) == [("clock_stepped", "node")]
    assert seen_by("clock_stepped", facts_of(now, {HOUR + 5.0: two, HOUR: now})) == []
    assert seen_by("clock_stepped", facts_of(now)) == []


@in_one_pass("flag, told", [(1.0, [("node_starved", "node")]), (0.0, []), (None, [])])
def test_a_starved_node_is_told_with_what_was_measured(flag: float | None, told: list[tuple[str, str]]) -> None:
    """Only while the daemon says so; what this kernel does not measure is left out."""
    flags: Numbers = {} if flag is None else {"commwatch_starved": {(): flag}}
    now: Numbers = {
        **flags, "commwatch_daemon_late_seconds": {(): 7.5}, "commwatch_stall_ratio": {("cpu",): 0.75},
        ERRORS: {(*NAME, "starved"): 5.0, (*NAME, "deadline"): 2.0},
    }  # fmt: skip
    matches = seen_by("node_starved", facts_of(now, {60.0: before(now, {ERRORS: {(*NAME, "starved"): 3.0}})}))

    assert codes_of(matches) == told
    assert [(one.what, one.value, one.threshold) for match in matches for one in match.evidence] == [
        ("share of time that the daemon waited for a CPU", 0.75, WAITED_SHARE),
        ("the daemon's last beat came late by", 7.5, LATE_SECONDS),
        ("readings not judged in the last hour", 3.0, None),
    ][: 3 * len(told)]


def test_a_rule_that_fails_is_told() -> None:
    """What it matches is not known."""
    now: Numbers = {RULE_ERRORS: {("nvlink.down",): 7.0}}
    six: Numbers = {RULE_ERRORS: {("nvlink.down",): 6.0}}

    assert codes_by("rule_failing", facts_of(now, {5.0: six})) == [("rule_failing", "daemon/nvlink.down")]
    assert seen_by("rule_failing", facts_of(now, {HOUR + 5.0: six, HOUR: now})) == []


def test_counters_that_cannot_be_believed_are_told_by_device() -> None:
    """All links of a GPU together; counters that are full belong to the port's own findings."""
    address = "0000:17:00.0"
    now: Numbers = {
        "commwatch_gpu_info": {("3", address, "GPU-1", "", "H100", "Hopper"): 1.0},
        ANOMALY: {
            ("nvml", f"{address}/0", "nvlink_transmit_bytes_total"): 2.0,
            ("nvml", f"{address}/1", "nvlink_transmit_bytes_total"): 2.0,
            ("nvml", "0000:18:00.0", "pcie_transmit_bytes_total"): 2.0,
            ("rdma", "mlx5_0/1", "rdma_port_receive_packets_total"): 3.0,
            ("rdma", "mlx5_0/1", "rdma_port_symbol_errors_total"): 4.0,
            ("ethtool", "ens1np0", "ethernet_phy_receive_packets_total"): 3.0,
        },
    }
    found = seen_by("counters_not_believed", facts_of(now))

    assert codes_of(found) == [
        ("counters_not_believed", f"gpu/{address}"),
        ("counters_not_believed", "gpu/0000:18:00.0"),
        ("counters_not_believed", "rdma_port/mlx5_0/1"),
        ("counters_not_believed", "interface/ens1np0"),
    ]
    assert (found[0].component.name, found[1].component.name) == ("GPU3", "")
    assert found[0].evidence == (Evidence("places where nvlink_transmit_bytes_total is blank", 2),)
    assert found[2].evidence == (Evidence("places where rdma_port_receive_packets_total is standing still", 1),)
    assert seen_by("counters_not_believed", facts_of({})) == []


FAILING = "commwatch_collector_device_failing"
SLOT = "0000:17:00.0"


def test_a_device_that_cannot_be_read_is_one_finding_that_names_it() -> None:
    """However many collectors and reasons; a GPU that could not be opened goes by its index."""
    info: Numbers = {"commwatch_gpu_info": {("3", SLOT, "GPU-3", "1", "H100", "hopper"): 1.0}}
    failed = {("nvml_gpu", SLOT, "unreadable"): 1.0, ("nvml_pcie", SLOT, "unreadable"): 1.0}
    others = {("nvml_gpu", "index:4", "no_permission"): 1.0, ("rdma", "mlx5_0:1", "unreadable"): 1.0,
              ("network", "eth0", "unreadable"): 1.0, ("pci", "0000:05:00.0", "unreadable"): 1.0}  # fmt: skip

    matches = seen_by("device_unread", facts_of({**info, FAILING: {**failed, **others}}))

    assert [(one.code, one.component.identity, one.component.words) for one in matches] == [
        ("device_unread", f"gpu/{SLOT}", f"GPU3 ({SLOT})"),
        ("device_unread", "gpu/index:4", "GPU4 (index:4)"),
        ("device_unread", "rdma_port/mlx5_0/1", "mlx5_0 port 1 (mlx5_0/1)"),
        ("device_unread", "interface/eth0", "eth0"),
        ("device_unread", "daemon/pci/0000:05:00.0", "pci of 0000:05:00.0"),
    ]
    assert matches[0].evidence == (Evidence("collectors that fail on it: unreadable", "nvml_gpu, nvml_pcie"),)
    assert seen_by("device_unread", facts_of({})) == []


@in_one_pass("reason", ["lost", "reset_required", "not_found", "deadline", "crashed"])
def test_a_gpu_with_a_state_is_not_found_besides(reason: str) -> None:
    """A port has none, and is found."""
    assert seen_by("device_unread", facts_of({FAILING: {("nvml_gpu", SLOT, reason): 1.0}})) == []
    assert len(seen_by("device_unread", facts_of({FAILING: {("rdma", "mlx5_0:1", reason): 1.0}}))) == 1


@pytest.mark.parametrize(("labels", "device"), [(("3", SLOT), SLOT), (("4", ""), "index:4")])
def test_a_gpu_that_fails_every_call_is_not_found_besides(labels: tuple[str, str], device: str) -> None:
    """It does not answer, which is one finding; another GPU of which something fails is found."""
    failed = {("nvml_gpu", device, "unreadable"): 1.0, ("nvml_gpu", "0000:99:00.0", "unreadable"): 1.0}

    matches = seen_by(
        "device_unread", facts_of({FAILING: failed, "commwatch_gpu_calls_failing_timestamp_seconds": {labels: 1.0}})
    )

    assert [one.component.key for one in matches] == ["0000:99:00.0"]


def test_a_device_that_is_found_stays_open_for_five_minutes_before_it_is_told() -> None:
    """As long as its alert waits."""
    assert CODES["device_unread"].opens_after == shipped().device_unread_for_seconds == 300.0


def test_a_collector_that_something_else_explains_is_not_told_besides() -> None:
    """A device that it could not read whole, or a driver that cannot be used; other collectors are."""
    long = collector(0.0, 700.0)
    assert codes_by("collector_failing", facts_of({**long, FAILING: {("nvml_gpu", SLOT, "unreadable"): 1.0}})) == []
    assert codes_by("collector_failing", facts_of({**long, "commwatch_driver_unusable": {("no_driver",): 1.0}})) == []

    assert codes_by("collector_failing", facts_of({**long, FAILING: {("rdma", "mlx5_0:1", "unreadable"): 1.0}})) != []
    assert codes_by("collector_failing", facts_of({**long, "commwatch_driver_unusable": {("none",): 0.0}})) != []
