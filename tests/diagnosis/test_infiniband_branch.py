"""The InfiniBand branch: each port and all together, each check at the edge of its mark."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from commwatch.diagnosis.check import Check, CheckVerdict
from commwatch.diagnosis.known import Known
from diagnosis.exposed import branch_of, cause, finding, known_of, verdicts
from support.machines import merged, without

STATE, RATE, SM, MTU, GID = (
    "state of the port", "rate of the link", "subnet manager (LID)", "MTU of the port", "address (GID)",
)  # fmt: skip
ERRORS, AGAIN, CONGESTION = (
    "errors of the link, last hour", "packets sent again or dropped", "congestion (ECN, CNP, credit, pause)",
)  # fmt: skip
COUNT, LAYERS, SHARES = "active RDMA ports", "one link layer on all active ports", "traffic even over the rails"
GPUDIRECT = "adapters reach GPU memory (GPUDirect RDMA)"
PORT = ("mlx5_0", "1")
Numbers = dict[str, dict[Any, float]]


def port(
    number: int = 0, *, layer: str = "InfiniBand", state: float | None = 4, gbit: float = 400, sm_lid: str = "0x1",
    interface: str = "", hca_type: str = "MT4129", physical: float = 5, use: float | None = None,
) -> Numbers:  # fmt: skip
    """What is exposed of one port."""
    key = (f"mlx5_{number}", "1")
    address = f"0000:{0x20 + number:02x}:00.0"
    numbers: Numbers = {
        "commwatch_rdma_port_info": {(*key, layer, "0x2", sm_lid, "28.39", hca_type, address, interface): 1},
        "commwatch_rdma_port_phys_state": {key: physical},
        "commwatch_rdma_port_speed_bytes_per_second": {key: gbit / 8 * 1e9},
        "commwatch_rdma_port_symbol_errors_total": {key: 7},
        "commwatch_rdma_ack_timeouts_total": {key: 3},
        "commwatch_rdma_port_transmit_wait_ticks_total": {key: 9e6},
        "commwatch_rdma_port_gids": {key: 1},
        "commwatch_rdma_port_gid_index": {(*key, "infiniband" if layer == "InfiniBand" else "roce_v1"): 0},
    }
    if state is not None:
        numbers["commwatch_rdma_port_state"] = {key: state}
    if use is not None:
        numbers["commwatch_rdma_port_transmit_utilization_peak_ratio"] = {key: use}
    return numbers


def roce(mtu: float | None = 9000, kinds: tuple[str, ...] = ("roce_v1", "roce_v2_ipv4"), **changes: Any) -> Numbers:
    """What is exposed of one RoCE port and its interface."""
    numbers = port(layer="Ethernet", interface="eth0", **changes)
    numbers["commwatch_rdma_port_gids"] = {PORT: len(kinds)}
    numbers["commwatch_rdma_port_gid_index"] = {(*PORT, kind): place for place, kind in enumerate(kinds)}
    if mtu is not None:
        numbers["commwatch_ethernet_mtu_bytes"] = {("eth0",): mtu}
    return numbers


def checks(known: Known) -> list[Check]:
    """What the branch makes; every check that failed says what is required."""
    found = branch_of(known, "infiniband")
    for check in found:
        assert check.verdict != "failed" or (check.measured and check.required)
        assert check.verdict != "not measured" or check.detail
    return found


def of(what: str, *parts: Numbers, where: str = "mlx5_0") -> Check:
    """One check of a node with these ports."""
    [check] = [one for one in checks(known_of(merged(*parts))) if one.what == what and one.where in (where, "")]
    return check


def test_a_node_without_rdma_has_one_line() -> None:
    """Known to have none is another thing than not read."""
    [absent] = checks(known_of({"commwatch_source_available": {("rdma",): 0}}))
    [unread] = checks(known_of({"commwatch_source_available": {("rdma",): 1}}))

    assert absent.verdict == "does not apply"
    assert unread.verdict == "not measured"


def test_ports_as_they_should_be_pass() -> None:
    """All but the MTU of InfiniBand, which sysfs does not have, and what needs traffic."""
    expected: Numbers = {
        "commwatch_present": {("rdma_port",): 2}, "commwatch_expected": {("rdma_port",): 2},
        "commwatch_gpu_info": {("0", "0000:17:00.0", "", "", "", ""): 1},
        "commwatch_gpudirect_rdma_available": {("dma_buf",): 1},
    }  # fmt: skip

    found = checks(known_of(merged(port(0), port(1), expected)))

    assert {check.what for check in found if check.verdict != "passed"} == {MTU, SHARES}
    assert verdicts(found, STATE) == {"mlx5_0": "passed", "mlx5_1": "passed"}


@pytest.mark.parametrize(
    ("state", "learned", "verdict", "measured"),
    [
        (4, True, "passed", "active"),
        (1, True, "failed", "down"),
        (2, True, "failed", "initialising"),
        (1, False, "notice", "down"),
        (None, False, "not measured", ""),
    ],
)
def test_a_port_that_was_active_must_be(
    state: float | None, learned: bool, verdict: CheckVerdict, measured: str
) -> None:
    """One that never was may be without a cable; of one that is down nothing else is asked."""
    expected: Numbers = {"commwatch_rdma_port_expected": {PORT: 1}} if learned else {}

    check = of(STATE, port(state=state), expected)
    found = {one.what for one in checks(known_of(merged(port(state=state), expected)))}

    assert (check.verdict, check.measured) == (verdict, measured)
    assert (RATE in found) == (state == 4)


@pytest.mark.parametrize(
    ("state", "physical", "layer", "verdict", "said"),
    [
        (2, 5, "InfiniBand", "failed", "no subnet manager"),
        (3, 5, "InfiniBand", "failed", "no subnet manager"),
        (1, 2, "InfiniBand", "notice", "not cabled"),
        (1, 3, "Ethernet", "notice", "not cabled"),
        (1, 5, "InfiniBand", "notice", "not active here for the learning time"),
    ],
)
def test_only_a_port_without_a_link_may_be_without_a_cable(
    state: float, physical: float, layer: str, verdict: CheckVerdict, said: str
) -> None:
    """One with a link has a cable: its subnet manager is missing."""
    check = of(STATE, port(state=state, physical=physical, layer=layer))

    assert check.verdict == verdict
    assert said in check.detail
    assert ("cabled" in check.detail) == (physical != 5)


def test_a_port_that_is_gone_fails() -> None:
    """It was active for the learning time and is not among all that were read; while none is read, nobody knows."""
    expected: Numbers = {"commwatch_rdma_port_expected": {PORT: 1}}
    read: Numbers = {"commwatch_collector_success": {("rdma",): 1}, "commwatch_present": {("rdma_port",): 0}}

    check = of(STATE, expected, read)

    assert (check.verdict, check.measured) == ("failed", "port: not on this node")
    assert of(STATE, expected).verdict == "not measured"


def test_the_ports_of_one_adapter_are_told_apart() -> None:
    """By their number, where there are several."""
    two = merged(port(0), {"commwatch_rdma_port_state": {("mlx5_0", "2"): 1}}, port(10), port(9))

    assert list(verdicts(checks(known_of(two)), STATE)) == ["mlx5_0 port 1", "mlx5_0 port 2", "mlx5_9", "mlx5_10"]


@pytest.mark.parametrize(
    ("sm_lid", "physical", "verdict"),
    [("0x1", 5, "passed"), ("0x0", 5, "failed"), ("0x0", 2, "not measured"), ("", 5, "not measured")],
)
def test_a_link_that_is_up_needs_a_subnet_manager(sm_lid: str, physical: float, verdict: CheckVerdict) -> None:
    """Without a link there is none to be seen."""
    assert of(SM, port(sm_lid=sm_lid, physical=physical, state=2)).verdict == verdict


def learned_speed(gbit: float) -> Numbers:
    return {"commwatch_rdma_port_speed_expected_bytes_per_second": {PORT: gbit / 8 * 1e9}}


@pytest.mark.parametrize(
    ("parts", "verdict", "required"),
    [
        ((port(), learned_speed(400)), "passed", "400 Gbit/s"),
        ((port(gbit=200), learned_speed(400)), "failed", "400 Gbit/s"),
        ((port(gbit=200), learned_speed(200), port(1)), "notice", "400 Gbit/s"),
        ((port(), port(1)), "passed", "400 Gbit/s"),
        ((port(gbit=200), port(1)), "notice", "400 Gbit/s"),
        ((port(gbit=100), port(1, hca_type="MT4123")), "not measured", ""),
        ((port(gbit=100),), "not measured", ""),
    ],
)
def test_the_rate_is_held_against_what_was_stable_and_its_siblings(
    parts: tuple[Numbers, ...], verdict: CheckVerdict, required: str
) -> None:
    """Adapters of another model may be slower."""
    check = of(RATE, *parts)

    assert (check.verdict, check.required) == (verdict, required)


def test_a_rate_without_a_name_is_not_measured() -> None:
    """As the kernel gives for links that it does not know."""
    assert of(RATE, without(port(), "commwatch_rdma_port_speed_bytes_per_second")).verdict == "not measured"


@pytest.mark.parametrize(
    ("mtu", "verdict", "measured"),
    [
        (9000, "passed", "4096 bytes"),
        (4192, "passed", "4096 bytes"),
        (4191, "notice", "2048 bytes"),
        (2143, "notice", "1024 bytes"),
        (1500, "notice", "1024 bytes"),
        (1119, "notice", "512 bytes"),
        (352, "notice", "256 bytes"),
        (351, "notice", "none"),
        (None, "not measured", ""),
    ],
)
def test_the_mtu_of_roce(mtu: float | None, verdict: CheckVerdict, measured: str) -> None:
    """The kernel sets 96 bytes of the interface aside for the headers; below the largest it is worth knowing."""
    check = of(MTU, roce(mtu))

    assert (check.verdict, check.measured) == (verdict, measured)


def test_mtus_that_nothing_shows() -> None:
    """That of InfiniBand is not in sysfs; other adapters have none of this kind."""
    assert "ibv_devinfo" in of(MTU, port()).detail
    assert of(MTU, port()).verdict == "not measured"
    assert of(MTU, port(layer="Unspecified")).verdict == "does not apply"


@pytest.mark.parametrize(
    ("kinds", "verdict", "measured"),
    [
        (("roce_v1", "roce_v2_link_local", "roce_v2_ipv6", "roce_v2_ipv4"), "passed", "IPv4 at index 3"),
        (("roce_v1", "roce_v2_ipv6"), "notice", "IPv6 at index 1"),
        (("roce_v1", "roce_v2_link_local"), "notice", "roce v1, roce v2 link local"),
        (("roce_v1",), "notice", "roce v1"),
        ((), "notice", "none"),
    ],
)
def test_roce_needs_version_2_with_an_address(kinds: tuple[str, ...], verdict: CheckVerdict, measured: str) -> None:
    """The index is the one that NCCL_IB_GID_INDEX would need."""
    check = of(GID, roce(kinds=kinds))

    assert (check.verdict, check.measured) == (verdict, measured)
    assert ("NCCL_IB_GID_INDEX=3" in check.detail) == (verdict == "passed")


def test_gids_of_infiniband_and_iwarp() -> None:
    """One is enough; a table that was not read says nothing, nor does one of GIDs without a kind."""
    iwarp = {**roce(kinds=("roce_v1",)), "commwatch_rdma_port_gid_index": {}}
    assert of(GID, iwarp).verdict == "not measured"
    assert of(GID, port()).measured == "index 0"
    assert of(GID, port(), {"commwatch_rdma_port_gids": {PORT: 0}}).verdict == "notice"
    assert of(GID, without(port(), "commwatch_rdma_port_gids")).verdict == "not measured"


IDENTITY = "rdma_port/mlx5_0/1"


def troubles(known: Known) -> dict[str, CheckVerdict]:
    return {check.what: check.verdict for check in checks(known) if check.what in (ERRORS, AGAIN, CONGESTION)}


def test_troubles_are_what_the_rules_found() -> None:
    """A fault fails, what is worth knowing is a notice, and a cause beneath another finding counts too."""
    probe = finding("probe_slow", "probe/all_reduce", causes=(cause("rdma_retransmitting", IDENTITY),))
    found = known_of(
        roce(),
        (
            finding("rdma_errors", IDENTITY),
            finding("ethernet_paused", "interface/eth0", "info"),
            finding("rdma_errors", "rdma_port/mlx5_9/1"),
            probe,
        ),
    )

    assert troubles(found) == {ERRORS: "failed", AGAIN: "failed", CONGESTION: "notice"}
    [check] = [one for one in checks(found) if one.what == ERRORS]
    assert check.measured == "rise: 12 (limit 10)"
    assert check.source == "rdma_packet_errors_per_hour"
    assert check.next_step == "do this"


def test_troubles_that_were_looked_for_and_not_found_pass() -> None:
    """A finding of another port is none of this one."""
    found = known_of(port(), (finding("rdma_errors", "rdma_port/mlx5_1/1"),))

    assert set(troubles(found).values()) == {"passed"}


def test_troubles_that_would_not_have_been_seen_are_not_measured() -> None:
    """Before the first look, where a rule fails, and where the adapter lacks the counters."""
    bare = without(
        port(), "commwatch_rdma_port_symbol_errors_total", "commwatch_rdma_ack_timeouts_total",
        "commwatch_rdma_port_transmit_wait_ticks_total",
    )  # fmt: skip

    assert set(troubles(known_of(port(), looked_at=None)).values()) == {"not measured"}
    of_congestion = troubles(known_of(port(), failing_rules=("rdma_traffic.congested",)))
    assert of_congestion == {ERRORS: "passed", AGAIN: "passed", CONGESTION: "not measured"}
    assert set(troubles(known_of(port(), failing_rules=("nvlink.down",))).values()) == {"passed"}
    assert set(troubles(known_of(bare)).values()) == {"not measured"}


@pytest.mark.parametrize(
    ("present", "expected", "verdict"),
    [(2, 2, "passed"), (1, 2, "failed"), (2, None, "not measured"), (None, 2, "not measured")],
)
def test_ports_are_counted(present: float | None, expected: float | None, verdict: CheckVerdict) -> None:
    """Against what was stable; a port that is gone is missed."""
    numbers: Numbers = {
        "commwatch_rdma_port_expected": {PORT: 1, ("mlx5_1", "1"): 1}, "commwatch_collector_success": {("rdma",): 1},
    }  # fmt: skip
    if (present, expected) != (1, 2):
        numbers |= merged(numbers, port(1))
    if present is not None:
        numbers["commwatch_present"] = {("rdma_port",): present}
    if expected is not None:
        numbers["commwatch_expected"] = {("rdma_port",): expected}

    assert of(COUNT, port(), numbers).verdict == verdict


def test_link_layers_that_differ_are_worth_knowing() -> None:
    """NCCL looks at all active ports."""
    assert of(LAYERS, roce(), port(1)).verdict == "notice"
    assert of(LAYERS, roce(), port(1, state=1)).verdict == "passed"
    assert of(LAYERS, port(state=1)).verdict == "not measured"


@pytest.mark.parametrize(
    ("ways", "verdict"),
    [
        ({"peermem": 1, "dma_buf": 0}, "passed"),
        ({"dma_buf": 1}, "passed"),
        ({"peermem": 0, "dma_buf": 0}, "notice"),
        ({"dma_buf": 0}, "not measured"),
        ({}, "not measured"),
    ],
)
def test_adapters_need_one_way_to_gpu_memory(ways: dict[str, float], verdict: CheckVerdict) -> None:
    """One module is enough; where one was not looked for, the other's absence says nothing."""
    gpu: Numbers = {"commwatch_gpu_info": {("0", "0000:17:00.0", "", "", "", ""): 1}}
    loaded: Numbers = {"commwatch_gpudirect_rdma_available": {(way,): flag for way, flag in ways.items()}}

    assert of(GPUDIRECT, port(), gpu, loaded).verdict == verdict
    assert of(GPUDIRECT, port(), loaded).verdict == "does not apply"


@pytest.mark.parametrize(
    ("uses", "verdict"),
    [
        ((0.5, 0.5, 0.3), "passed"),  # 60 % of the median of the others
        ((0.5, 0.5, 0.29), "notice"),
        ((0.09, 0.09, 0.01), "not measured"),
        ((0.5, 0.1), "does not apply"),
        ((None, None, None), "not measured"),
    ],
)
def test_rails_share_the_traffic(uses: tuple[float | None, ...], verdict: CheckVerdict) -> None:
    """Those of one model, while they are in use; with two it is not known which one is at fault."""
    parts = [port(number, use=use) for number, use in enumerate(uses)]
    [check] = [one for one in checks(known_of(merged(*parts))) if one.what == SHARES]

    assert check.verdict == verdict
    assert check.where == ("mlx5_2" if verdict in ("passed", "notice") else "")


def test_the_mark_of_even_rails_is_a_threshold() -> None:
    """A file of one's own moves it."""
    known = known_of(merged(*(port(number, use=use) for number, use in enumerate((0.5, 0.5, 0.4)))))
    strict = replace(known, thresholds=replace(known.thresholds, nvlink_sibling_low_ratio=0.9))

    assert verdicts(checks(strict), SHARES) == {"mlx5_2": "notice"}
