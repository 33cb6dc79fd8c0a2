"""What jobs tell: errors in their logs, and settings that do harm."""

from __future__ import annotations

from collections.abc import Mapping

from commwatch.findings.causes import join
from commwatch.findings.codes import CODES
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Match
from commwatch.findings.register import Incident
from commwatch.jobs.logs.categories import SIDES
from support.facts import HOUR, NOW, Numbers, codes_of, facts_of, seen_by, seen_in, shipped
from support.machines import CARDS, four_cards, identities, merged
from support.passes import in_one_pass

LIMITS = shipped()
BRIDGES = [f"0000:{bus}{end}" for bus in "26" for end in ("0:01.0", "1:00.0", "2:00.0", "2:01.0")]
"""All above the cards."""
NETWORK: Numbers = {
    "commwatch_rdma_port_info": {("mlx5_0", "1", "InfiniBand", "", "", "", "", "0000:c1:00.0", ""): 1.0},
    "commwatch_ethernet_info": {("eth0", "", "", ""): 1.0},
    "commwatch_pcie_device_info": {("0000:c1:00.0", "nic", "", "", "", ""): 1.0},
}


def logs(counts: Mapping[str, float]) -> Numbers:
    return {"commwatch_nccl_log_errors_total": {(category,): count for category, count in counts.items()}}


def written(counts: Mapping[str, float], *, ago: float = 60.0, more: Numbers | None = None) -> Facts:
    """So many lines of each category, written so many seconds ago; some stood there before."""
    now = merged(logs({category: 5 + count for category, count in counts.items()}), more or {})
    return facts_of(now, history={ago + 60.0: logs(dict.fromkeys(counts, 5)), ago: now})


def seen(facts: Facts) -> list[Match]:
    return [one for one in seen_in(facts) if one.code.startswith("nccl_")]


def test_three_errors_in_ten_minutes() -> None:
    """Of one kind; two are none, and what is older than the window does not count."""
    least, window = LIMITS.nccl_log_errors_min, LIMITS.nccl_log_errors_window_seconds

    assert seen(written({"ib_retry": least - 1, "socket": least - 1})) == []
    [found] = seen(written({"ib_retry": least}))
    assert (found.code, found.component.identity, found.detail) == (
        "nccl_errors", "log/ib_retry", "on the side of: network"
    )  # fmt: skip
    assert seen(written({"ib_retry": least}, ago=window - 1)) != []
    assert seen(written({"ib_retry": least}, ago=window + 1)) == []


@in_one_pass("category", sorted(SIDES))
def test_each_category_is_told_as_what_it_is(category: str) -> None:
    """Faults of the node as such, giving up as a symptom, faults of the job as its own; noise not at all."""
    sides = {str(one): side for one, side in SIDES.items()}
    codes = [one.code for one in seen(written({category: 9}))]

    if category in ("timeout", "remote", "ib_rnr", "ib_remote_access"):
        assert codes == ["nccl_timeouts"]
    elif sides[category] in ("network", "nvlink", "gpu", "host"):
        assert codes == ["nccl_errors"]
    elif sides[category] in ("config", "program"):
        assert codes == ["nccl_job_errors"]
    else:
        assert category in ("other", "ib_flush", "cancelled", "teardown")
        assert codes == []


def test_one_timeout_is_told_for_an_hour() -> None:
    """A job that gave up is gone by the time somebody looks."""
    assert [one.code for one in seen(written({"timeout": 1}, ago=HOUR - 1))] == ["nccl_timeouts"]
    assert seen(written({"timeout": 1}, ago=HOUR + 1)) == []


def test_a_category_that_appears_counts_from_its_first_line() -> None:
    """A series that is not there before its first event is no old one."""
    facts = facts_of(logs({"socket": 0, "ib_retry": 3}), history={60.0: logs({"socket": 0})})

    assert codes_of(seen(facts)) == [("nccl_errors", "log/ib_retry")]


def test_a_category_of_another_version_is_left_alone() -> None:
    """It is on no side."""
    assert seen(written({"of_tomorrow": 99})) == []


@in_one_pass(
    "category, parts",
    [
        ("ib_retry", {"mlx5_0", "eth0", "0000:c1:00.0/pcie"}),
        ("nvls", {f"{card}/nvlink" for card in CARDS}),
        ("cuda", {f"{card}/nvlink" for card in CARDS} | {f"{part}/pcie" for part in (*CARDS, *BRIDGES)}),
        ("p2p", set()),
    ],
)
def test_errors_of_a_side_have_its_parts(category: str, parts: set[str]) -> None:
    """So that a fault of a GPU does not explain what the network did."""
    [found] = seen(written({category: 9}, more=merged(four_cards(), NETWORK)))

    assert found.component.parts == parts


def test_errors_that_name_an_adapter_have_its_parts_alone() -> None:
    """With its interface and its PCIe link; one that is not here any more by its name."""
    ports: Numbers = {
        "commwatch_rdma_port_info": {
            ("mlx5_0", "1", "InfiniBand", "", "", "", "", "0000:c1:00.0", ""): 1.0,
            ("mlx5_1", "1", "Ethernet", "", "", "", "", "0000:c2:00.0", "eth1"): 1.0,
        },
        "commwatch_pcie_device_info": {(f"0000:c{one}:00.0", "nic", "", "", "", ""): 1.0 for one in "12"},
    }

    def parts(named: str) -> set[str]:
        def lines(count: float) -> Numbers:
            devices = {(device,): count if device == named else 0.0 for device in ("mlx5_0", "mlx5_1", "mlx5_7")}
            return {**logs({"ib_retry": count}), "commwatch_nccl_log_device_errors_total": devices}

        now = merged(lines(9), ports)
        [found] = seen(facts_of(now, history={120.0: lines(0), 60.0: now}))
        return set(found.component.parts)

    assert parts("mlx5_0") == {"mlx5_0", "0000:c1:00.0/pcie"}
    assert parts("mlx5_1") == {"mlx5_1", "eth1", "0000:c2:00.0/pcie"}
    assert parts("mlx5_7") == {"mlx5_7"}
    assert parts("none") == {"mlx5_0", "mlx5_1", "0000:c1:00.0/pcie", "0000:c2:00.0/pcie"}


def test_the_rank_for_which_all_others_waited_says_which_gpu() -> None:
    """A time-out has the parts of that GPU; without one it has no place."""

    def parts(silent: str) -> set[str]:
        def lines(count: float) -> Numbers:
            gpus = {(index,): count if index == silent else 0.0 for index in "0123"}
            return {**logs({"timeout": count}), "commwatch_nccl_log_silent_rank_incidents_total": gpus}

        now = merged(lines(3), four_cards())
        return set(next(iter(seen(facts_of(now, history={120.0: lines(0), 60.0: now})))).component.parts)

    found = parts("2")
    assert parts("none") == set()
    assert len({part.partition("/")[0] for part in found if part.endswith("/nvlink")}) == 1
    assert found != parts("1")


def test_a_silent_rank_is_the_gpu_that_cuda_gives_it() -> None:
    """CUDA counts by PCI address, the driver here from the other end."""

    def lines(count: float) -> Numbers:
        return {**logs({"timeout": count}), "commwatch_nccl_log_silent_rank_incidents_total": {("0",): count}}

    now = merged(lines(3), identities(CARDS[::-1]))
    [found] = seen(facts_of(now, history={120.0: lines(0), 60.0: now}))

    assert found.evidence[1].what == "times that only GPU3 was silent"
    assert f"{CARDS[0]}/nvlink" in found.component.parts


def fallbacks(kind: str, *, ago: float = 60.0, more: Numbers | None = None, count: float = 2) -> Facts:
    """Two logs that show this kind, written this number of seconds ago; five had shown it before."""

    def counts(logs: float) -> Numbers:
        return {"commwatch_nccl_log_transport_fallbacks_total": {(kind,): logs}}

    now = merged(counts(5 + count), more or {})
    return facts_of(now, history={ago + 60.0: counts(5), ago: now})


def test_a_job_that_left_the_fast_transport_is_a_warning_for_an_hour() -> None:
    """From the first log on, with the reason, the next step, and what the node has; a job that is well is none."""
    ports: Numbers = {"commwatch_rdma_port_state": {("mlx5_0", "1"): 4.0, ("mlx5_1", "1"): 1.0}}
    [found] = seen(fallbacks("libibverbs_missing", ago=HOUR - 1, more=merged(NETWORK, ports)))

    assert (found.code, found.component.identity) == ("nccl_transport_fallback", "log/libibverbs_missing")
    assert "libibverbs is not in the image" in found.detail
    assert "Install libibverbs" in found.detail
    assert [(one.what, one.value) for one in found.evidence] == [
        ("logs in the last hour", 2), ("active RDMA ports of this node", 1)
    ]  # fmt: skip
    assert "mlx5_0" in found.component.parts
    assert seen(fallbacks("libibverbs_missing", ago=HOUR + 1)) == []
    assert seen(fallbacks("libibverbs_missing", count=0)) == []
    assert seen(fallbacks("of_tomorrow")) == []
    assert seen(facts_of({})) == []


def test_a_fallback_within_the_node_is_of_its_nvlinks() -> None:
    """A fault of the network does not touch them."""
    for kind in ("p2p_disabled", "nvls_lost"):
        [found] = seen(fallbacks(kind, more=merged(four_cards(), NETWORK)))
        assert found.component.parts == {f"{card}/nvlink" for card in CARDS}


def over_tcp(seconds: float) -> Facts:
    labels = ("0", "0000:17:00.0", "eth0")
    return facts_of({
        "commwatch_job_over_tcp_seconds": {labels: seconds},
        "commwatch_job_over_tcp_bytes_per_second": {labels: 2e9},
        **NETWORK,
    })  # fmt: skip


def test_payload_over_tcp_is_information_from_a_minute_and_a_half_on() -> None:
    """With interface and rate; nothing below, nor where nothing was read."""
    assert seen_by("job_over_tcp", over_tcp(89.9)) == []
    assert seen_by("job_over_tcp", facts_of({})) == []
    [found] = seen_by("job_over_tcp", over_tcp(90))

    assert (CODES[found.code].severity, found.since) == ("info", NOW - 90)
    assert found.component.words == "jobs from GPU0 on, over eth0"
    assert "mlx5_0" in found.component.parts
    assert [one.value for one in found.evidence] == [90, 2e9]


def test_counters_and_log_that_agree_are_one_warning() -> None:
    """The log's finding is the cause of the counters' one, whichever came first."""
    [counted] = seen_by("job_over_tcp", over_tcp(90))
    [logged] = seen(fallbacks("libibverbs_missing", more=NETWORK))
    for ago in (600.0, 0.0):
        incidents = [Incident(logged, NOW - ago, NOW), Incident(counted, NOW - 90, NOW)]
        [told] = join(incidents)
        assert (told.code, told.severity) == ("job_over_tcp", "warning")
        assert [one.code for one in told.causes] == ["nccl_transport_fallback"]
    assert join(incidents[1:])[0].severity == "info"


def remark(severity: str, processes: float = 8) -> Numbers:
    return {"commwatch_nccl_setting_processes": {("NCCL_P2P_DISABLE", "p2p_off", severity): processes}}


@in_one_pass(
    "severity, codes",
    [("harmful", ["nccl_setting_harmful"]), ("suspicious", ["nccl_setting_suspicious"]), ("useless", []), ("note", [])],
)
def test_settings_by_their_severity(severity: str, codes: list[str]) -> None:
    """What does nothing, or is only worth a note, is no finding."""
    found = seen_by("nccl_setting_harmful", facts_of(remark(severity)))

    assert [one.code for one in found] == codes
    for one in found:
        assert one.component.identity == "setting/NCCL_P2P_DISABLE/p2p_off"
        assert [fact.value for fact in one.evidence] == ["p2p_off", 8]


def test_a_setting_of_no_process_is_none() -> None:
    """The job has ended; and nothing is said where nothing was read."""
    assert seen_by("nccl_setting_harmful", facts_of(remark("harmful", 0))) == []
    assert seen_by("nccl_setting_harmful", facts_of({})) == []
