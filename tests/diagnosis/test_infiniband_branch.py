"""The InfiniBand branch: each port and all together, each check at the edge of its mark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from commwatch.diagnosis.check import Check, CheckVerdict
from commwatch.diagnosis.known import Known
from diagnosis.exposed import branch_of, cause, finding, known_of, shows, verdicts
from support.machines import merged, without
from support.passes import in_one_pass

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


LEARNED: Numbers = {"commwatch_rdma_port_expected": {PORT: 1}}
GPU: Numbers = {"commwatch_gpu_info": {("0", "0000:17:00.0", "", "", "", ""): 1}}
READ: Numbers = {"commwatch_collector_success": {("rdma",): 1}, "commwatch_present": {("rdma_port",): 0}}


def learned_speed(gbit: float) -> Numbers:
    return {"commwatch_rdma_port_speed_expected_bytes_per_second": {PORT: gbit / 8 * 1e9}}


def counted(present: float | None, expected: float | None) -> Numbers:
    """Two ports that were active for the learning time."""
    numbers: Numbers = {
        "commwatch_rdma_port_expected": {PORT: 1, ("mlx5_1", "1"): 1}, "commwatch_collector_success": {("rdma",): 1},
    }  # fmt: skip
    if present is not None:
        numbers["commwatch_present"] = {("rdma_port",): present}
    if expected is not None:
        numbers["commwatch_expected"] = {("rdma_port",): expected}
    return numbers


def loaded(**ways: float) -> Numbers:
    """Modules by which an adapter reaches the memory of a GPU."""
    return {"commwatch_gpudirect_rdma_available": {(way,): flag for way, flag in ways.items()}}


def rails(*uses: float | None) -> Numbers:
    """Ports of one adapter model with their share of the line rate."""
    return merged(*(port(number, use=use) for number, use in enumerate(uses)))


def unread(*metrics: str) -> Numbers:
    """A port of which these are not read."""
    return without(port(), *(f"commwatch_rdma_port_{metric}" for metric in metrics))


CASES: list[tuple[str, str, tuple[Numbers, ...], str, dict[str, str]]] = [
    ("an active port is well", STATE, (port(), LEARNED), "passed", {"measured": "active"}),
    ("a port that was active must be", STATE, (port(state=1), LEARNED), "failed", {"measured": "down"}),
    ("it may be on its way", STATE, (port(state=2), LEARNED), "failed", {"measured": "initialising"}),
    ("one that never was need not be", STATE, (port(state=1),), "notice",
     {"measured": "down", "says": "have never been up", "never": "polling"}),
    ("of one that was not read nothing is known", STATE, (port(state=None),), "not measured", {"measured": ""}),
    ("a link without a subnet manager has a cable", STATE, (port(state=2),), "failed",
     {"says": "no subnet manager", "never": "cabled"}),
    ("so has one that is armed", STATE, (port(state=3),), "failed", {"says": "no subnet manager", "never": "cabled"}),
    ("without a link it may have none", STATE, (port(state=1, physical=2),), "notice", {"says": "have never been up"}),
    ("with RoCE too", STATE, (port(state=1, physical=3, layer="Ethernet"),), "notice", {"says": "have never been up"}),
    ("a port that is not among all that were read is gone", STATE, (LEARNED, READ), "failed",
     {"measured": "port: not on this node"}),
    ("while none is read nobody knows", STATE, (LEARNED,), "not measured", {}),
    ("a link that is up has a subnet manager", SM, (port(state=2),), "passed", {}),
    ("or needs one", SM, (port(state=2, sm_lid="0x0"),), "failed", {}),
    ("without a link there is none to be seen", SM, (port(state=2, sm_lid="0x0", physical=2),), "not measured", {}),
    ("an unread LID is none of 0", SM, (port(state=2, sm_lid=""),), "not measured", {}),
    ("a rate as it was", RATE, (port(), learned_speed(400)), "passed", {"required": "400 Gbit/s"}),
    ("a rate below what was", RATE, (port(gbit=200), learned_speed(400)), "failed", {"required": "400 Gbit/s"}),
    ("a rate below that of a sibling", RATE, (port(gbit=200), learned_speed(200), port(1)), "notice",
     {"required": "400 Gbit/s"}),
    ("a rate like that of a sibling", RATE, (port(), port(1)), "passed", {"required": "400 Gbit/s"}),
    ("below a sibling and not learned", RATE, (port(gbit=200), port(1)), "notice", {"required": "400 Gbit/s"}),
    ("another model may be faster", RATE, (port(gbit=100), port(1, hca_type="MT4123")), "not measured",
     {"required": ""}),
    ("alone it is compared with nothing", RATE, (port(gbit=100),), "not measured", {"required": ""}),
    ("a rate that the kernel has no name for", RATE, (unread("speed_bytes_per_second"),), "not measured", {}),
    *(("96 bytes of the interface are for the headers", MTU, (roce(mtu),), verdict, {"measured": measured})
      for mtu, verdict, measured in (
          (9000, "passed", "4096 bytes"), (4192, "passed", "4096 bytes"), (4191, "notice", "2048 bytes"),
          (2143, "notice", "1024 bytes"), (1500, "notice", "1024 bytes"), (1119, "notice", "512 bytes"),
          (352, "notice", "256 bytes"), (351, "notice", "none"), (None, "not measured", ""),
      )),
    ("sysfs has not that of InfiniBand", MTU, (port(),), "not measured", {"says": "ibv_devinfo"}),
    ("other adapters have none of this kind", MTU, (port(layer="Unspecified"),), "does not apply", {}),
    ("the index is the one that NCCL_IB_GID_INDEX needs", GID,
     (roce(kinds=("roce_v1", "roce_v2_link_local", "roce_v2_ipv6", "roce_v2_ipv4")),), "passed",
     {"measured": "IPv4 at index 3", "says": "NCCL_IB_GID_INDEX=3"}),
    ("NCCL looks for IPv4 first", GID, (roce(kinds=("roce_v1", "roce_v2_ipv6")),), "notice",
     {"measured": "IPv6 at index 1", "never": "NCCL_IB_GID_INDEX"}),
    ("a link-local address is not routed", GID, (roce(kinds=("roce_v1", "roce_v2_link_local")),), "notice",
     {"measured": "roce v1, roce v2 link local"}),
    ("nor is version 1", GID, (roce(kinds=("roce_v1",)),), "notice", {"measured": "roce v1"}),
    ("RoCE without an address", GID, (roce(kinds=()),), "notice", {"measured": "none"}),
    ("iWARP has GIDs without a kind", GID, ({**roce(kinds=("roce_v1",)), "commwatch_rdma_port_gid_index": {}},),
     "not measured", {}),
    ("one GID is enough for InfiniBand", GID, (port(),), "passed", {"measured": "index 0"}),
    ("none is too few", GID, (port(), {"commwatch_rdma_port_gids": {PORT: 0}}), "notice", {}),
    ("a table that was not read says nothing", GID, (unread("gids"),), "not measured", {}),
    ("as many ports as were stable", COUNT, (port(), port(1), counted(2, 2)), "passed", {}),
    ("a port that is gone is missed", COUNT, (port(), counted(1, 2)), "failed", {}),
    ("what is not learned is not judged", COUNT, (port(), port(1), counted(2, None)), "not measured", {}),
    ("nor what was not read", COUNT, (port(), port(1), counted(None, 2)), "not measured", {}),
    ("NCCL takes all active ports", LAYERS, (roce(), port(1)), "notice", {}),
    ("one that is down counts for none", LAYERS, (roce(), port(1, state=1)), "passed", {}),
    ("without any there is no layer", LAYERS, (port(state=1),), "not measured", {}),
    ("one module is enough", GPUDIRECT, (port(), GPU, loaded(peermem=1, dma_buf=0)), "passed", {}),
    ("so is the other", GPUDIRECT, (port(), GPU, loaded(dma_buf=1)), "passed", {}),
    ("none is worth knowing", GPUDIRECT, (port(), GPU, loaded(peermem=0, dma_buf=0)), "notice", {}),
    ("one that was not looked for may be there", GPUDIRECT, (port(), GPU, loaded(dma_buf=0)), "not measured", {}),
    ("nothing was looked for", GPUDIRECT, (port(), GPU), "not measured", {}),
    ("no GPU has memory to reach", GPUDIRECT, (port(), loaded(peermem=1)), "does not apply", {}),
    ("60 % of the median of the others", SHARES, (rails(0.5, 0.5, 0.3),), "passed", {"where": "mlx5_2"}),
    ("less is uneven", SHARES, (rails(0.5, 0.5, 0.29),), "notice", {"where": "mlx5_2"}),
    ("hardly used rails are not compared", SHARES, (rails(0.09, 0.09, 0.01),), "not measured", {"where": ""}),
    ("of two nobody knows which is at fault", SHARES, (rails(0.5, 0.1),), "does not apply", {"where": ""}),
    ("nor of rails that were not read", SHARES, (rails(None, None, None),), "not measured", {"where": ""}),
]  # fmt: skip
"""What a case shows, the check, what is exposed, and the check's verdict and fields; ``says`` is in its detail."""


@in_one_pass("name, what, parts, verdict, fields", CASES)
def test_a_check_at_the_edge_of_its_mark(
    name: str, what: str, parts: tuple[Numbers, ...], verdict: str, fields: dict[str, str]
) -> None:
    """Of the first port, or of all ports together."""
    ours = [one for one in checks(known_of(merged(*parts))) if one.what == what]
    [check] = [one for one in ours if one.where == "mlx5_0"] or ours

    shows(check, verdict, **fields)


def test_a_node_without_rdma_has_one_line() -> None:
    """Known to have none is another thing than not read."""
    [absent] = checks(known_of({"commwatch_source_available": {("rdma",): 0}}))
    [unread] = checks(known_of({"commwatch_source_available": {("rdma",): 1}}))

    assert (absent.verdict, unread.verdict) == ("does not apply", "not measured")


def test_ports_as_they_should_be_pass() -> None:
    """All but the MTU of InfiniBand, which sysfs does not have, and what needs traffic."""
    found = checks(known_of(merged(port(0), port(1), counted(2, 2), GPU, loaded(dma_buf=1))))

    assert {check.what for check in found if check.verdict != "passed"} == {MTU, SHARES}
    assert verdicts(found, STATE) == {"mlx5_0": "passed", "mlx5_1": "passed"}


def test_of_a_port_that_is_down_nothing_else_is_asked() -> None:
    """It has no rate, no address and no traffic."""
    assert RATE not in {one.what for one in checks(known_of(port(state=1)))}


def test_the_ports_of_one_adapter_are_told_apart() -> None:
    """By their number, where there are several."""
    two = merged(port(0), {"commwatch_rdma_port_state": {("mlx5_0", "2"): 1}}, port(10), port(9))

    assert list(verdicts(checks(known_of(two)), STATE)) == ["mlx5_0 port 1", "mlx5_0 port 2", "mlx5_9", "mlx5_10"]


def test_a_roce_port_that_is_switched_off_and_not_missed_says_so() -> None:
    """As one that a container has given back."""
    interface: Numbers = {"commwatch_ethernet_info": {("eth0", "0000:20:00.0", "mlx5_core", ""): 1}}
    [check] = [one for one in checks(known_of(merged(roce(state=1), interface))) if one.what == STATE]

    shows(check, "notice", measured="down", says="its interface eth0 is switched off")


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


@in_one_pass(
    "functions, findings, expected",
    [
        ({}, (), {ERRORS: "passed", AGAIN: "passed", CONGESTION: "passed"}),
        ({PORT: 8}, (), {ERRORS: "passed", AGAIN: "not measured", CONGESTION: "not measured"}),
        ({PORT: 8}, ("rdma_dropping",), {ERRORS: "passed", AGAIN: "failed", CONGESTION: "not measured"}),
    ],
)
def test_of_virtual_functions_no_loss_is_ruled_out(
    functions: dict[Any, float], findings: tuple[str, ...], expected: dict[str, CheckVerdict]
) -> None:
    """They count what they lose; the link is that of all. What the port itself lost is found all the same."""
    numbers = merged(port(), {"commwatch_rdma_port_virtual_functions": functions})

    assert troubles(known_of(numbers, [finding(code, IDENTITY) for code in findings])) == expected


def on_board(uses: Mapping[int, float], gpus: int, two_on: Mapping[int, str] = {}) -> Numbers:
    """Ports of one model with their use, GPUs beside them, and which of the ports share a card, by their numbers."""
    node = merged(*(port(number, use=use) for number, use in uses.items()))
    infos = {
        (*key[:7], two_on.get(int(key[0].removeprefix("mlx5_")), key[7]), key[8]): 1.0
        for key in node["commwatch_rdma_port_info"]
    }
    gpu = {(str(one), f"0000:{0x80 + one:02x}:00.0", "", "", "", ""): 1.0 for one in range(gpus)}
    return {**node, "commwatch_rdma_port_info": infos, "commwatch_gpu_info": gpu}


@in_one_pass(
    "numbers, verdict",
    [
        (on_board(dict.fromkeys(range(8), 0.5), 8), "passed"),
        (on_board({**dict.fromkeys(range(7), 0.5), 7: 0.0}, 8), "notice"),
        (on_board({**dict.fromkeys(range(3), 0.5), 3: 0.0}, 8), "notice"),
        (merged(on_board({**dict.fromkeys(range(6), 0.5), 6: 0.0, 7: 0.0}, 8), port(7, state=1, use=None)), "notice"),
        # Two ports of a card lead to storage, one of a card each cannot be told from rails that are not all there.
        (
            on_board({**dict.fromkeys(range(8), 0.5), 8: 0.0, 9: 0.0}, 8, {8: "0000:e0:00.0", 9: "0000:e0:00.1"}),
            "passed",
        ),
        (on_board({**dict.fromkeys(range(8), 0.5), 8: 0.0, 9: 0.0}, 8), "does not apply"),
    ],
)
def test_ports_of_storage_are_not_compared_with_rails(numbers: Numbers, verdict: str) -> None:
    """Rails are as many for each GPU, on cards of one kind."""
    assert set(verdicts(checks(known_of(numbers)), SHARES).values()) == {verdict}


def test_rails_with_virtual_functions_are_not_compared() -> None:
    """A rail whose jobs use functions alone looks idle."""
    functions: Numbers = {"commwatch_rdma_port_virtual_functions": {("mlx5_2", "1"): 8}}
    [check] = [one for one in checks(known_of(merged(rails(0.5, 0.5, 0.0), functions))) if one.what == SHARES]

    shows(check, "not measured", where="mlx5_2", says="the 8 virtual functions of its adapter are not read")


def test_the_mark_of_even_rails_is_a_threshold() -> None:
    """A file of one's own moves it."""
    known = known_of(rails(0.5, 0.5, 0.4))
    strict = replace(known, thresholds=replace(known.thresholds, nvlink_sibling_low_ratio=0.9))

    assert verdicts(checks(strict), SHARES) == {"mlx5_2": "notice"}
