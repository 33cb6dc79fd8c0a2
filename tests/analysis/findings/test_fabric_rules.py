"""The fabric: what the driver says of it, the services that run it, and GPUs that it does not connect."""

from __future__ import annotations

from itertools import combinations

import pytest

from support.facts import Numbers, codes_by, facts_of, seen_by
from support.passes import in_one_pass

ADDRESSES = [f"0000:{bus}:00.0" for bus in ("17", "18", "2a", "3a")]
GPUS = [(f"{index}", address) for index, address in enumerate(ADDRESSES)]
FAULT = "commwatch_fabric_fault"
RUNNING = "commwatch_service_running"


def of(metric: str, *values: float) -> dict[str, dict[tuple[str, ...], float]]:
    """A metric of the first GPUs."""
    series: dict[tuple[str, ...], float] = dict(zip(GPUS, values, strict=False))
    return {metric: series}


@in_one_pass("verdict, codes", [(1, []), (2, ["fabric_unhealthy"]), (3, ["fabric_limited"])])
def test_the_verdict_of_the_driver_is_taken(verdict: int, codes: list[str]) -> None:
    """1 is healthy."""
    assert [one.code for one in seen_by("fabric_unhealthy", facts_of(of("commwatch_fabric_health", verdict)))] == codes


@in_one_pass(
    "check, code",
    [
        ("route_unhealthy", "fabric_unhealthy"),
        ("degraded_bandwidth", "fabric_limited"),
        ("route_recovery", "fabric_recovering"),
        ("access_timeout_recovery", "fabric_recovering"),
    ],
)
def test_single_checks_speak_for_themselves(check: str, code: str) -> None:
    """A driver without a verdict still says what is wrong; a check that is well says nothing."""
    assert codes_by("fabric_unhealthy", facts_of({FAULT: {(*GPUS[0], check): 1}})) == [(code, f"gpu/{ADDRESSES[0]}")]
    assert seen_by("fabric_unhealthy", facts_of({FAULT: {(*GPUS[0], check): 0}})) == []


def test_a_verdict_and_its_check_are_one_finding() -> None:
    """The evidence holds both."""
    facts = facts_of(of("commwatch_fabric_health", 2) | {FAULT: {(*GPUS[0], "route_unhealthy"): 1}})

    [match] = seen_by("fabric_unhealthy", facts)
    assert [one.value for one in match.evidence] == ["unhealthy", "a route is unhealthy"]


@pytest.mark.parametrize("state", [1, 2])
def test_a_gpu_that_has_not_joined_is_found(state: int) -> None:
    """Not started and in progress; a GPU without a fabric is none."""
    facts = facts_of(of("commwatch_fabric_state", 3, state))

    assert codes_by("fabric_not_joined", facts) == [("fabric_not_joined", f"gpu/{ADDRESSES[1]}")]
    assert seen_by("fabric_not_joined", facts_of(of("commwatch_fabric_state", 3, 3, 0))) == []


def test_joining_that_failed_is_found() -> None:
    """Completed, with an error."""
    numbers = of("commwatch_fabric_state", 3, 3) | of("commwatch_fabric_status", 0, 999)

    assert codes_by("fabric_not_joined", facts_of(numbers)) == [("fabric_not_joined", f"gpu/{ADDRESSES[1]}")]


def test_a_gpu_alone_in_a_virtual_machine_need_not_join() -> None:
    """It has no partner; the fabric belongs to the host."""
    assert seen_by("fabric_not_joined", facts_of(of("commwatch_fabric_state", 2))) == []
    alone = of("commwatch_fabric_state", 2) | of("commwatch_fabric_incorrect_configuration", 4)
    assert seen_by("fabric_misconfigured", facts_of(alone)) == []


MODE = "commwatch_service_fabric_mode"


@in_one_pass(
    "mode, state, status, reason, codes",
    [
        (0, 2, None, 4, ["fabric_not_joined", "fabric_misconfigured"]),
        (None, 2, None, 4, ["fabric_not_joined", "fabric_misconfigured"]),  # its configuration cannot be read
        # virtual machines share the NVSwitches: a GPU waits for a partition
        (1, 2, None, 4, []),
        (2, 1, None, 4, []),
        (1, 3, 999, 5, ["fabric_not_joined", "fabric_misconfigured"]),
    ],
)
def test_a_gpu_that_waits_for_a_partition_is_well(
    mode: int | None, state: int, status: int | None, reason: int, codes: list[str]
) -> None:
    """Each GPU does where none was activated since the start of the fabric manager; one that failed to join is not."""
    numbers: Numbers = {
        **of("commwatch_fabric_state", state, state),
        **of("commwatch_fabric_incorrect_configuration", reason),
        FAULT: {(*GPUS[0], "partition_not_assigned"): float(reason == 4)},
        **({} if status is None else of("commwatch_fabric_status", status, 0)),
        **({} if mode is None else {MODE: {("nvidia-fabricmanager",): float(mode)}}),
    }

    found = {
        one.code for code in ("fabric_not_joined", "fabric_misconfigured") for one in seen_by(code, facts_of(numbers))
    }
    assert found == set(codes)


def test_a_wrong_configuration_is_told_in_words() -> None:
    """1 is nothing wrong."""
    numbers = of("commwatch_fabric_state", 3, 3) | of("commwatch_fabric_incorrect_configuration", 5, 1)
    numbers = {**numbers, FAULT: {(*GPUS[0], "partition_not_assigned"): 1, (*GPUS[1], "partition_not_assigned"): 0}}

    [match] = seen_by("fabric_misconfigured", facts_of(numbers))
    assert match.component.key == ADDRESSES[0]
    assert [one.value for one in match.evidence] == ["insufficient NVLinks", "not assigned"]


def test_a_fabric_manager_that_is_gone_is_one_finding_of_the_node() -> None:
    """However many GPUs have lost it."""
    lost = {FAULT: {(*gpu, "fabric_manager_disconnected"): 1 for gpu in GPUS}}

    [match] = seen_by("fabric_manager_down", facts_of({RUNNING: {("nvidia-fabricmanager",): 0}, **lost}))
    assert (match.code, match.component.identity) == ("fabric_manager_down", "service/nvidia-fabricmanager")
    assert [one.value for one in match.evidence] == ["not running", 4]
    assert len(seen_by("fabric_manager_down", facts_of(lost))) == 1


def test_services_that_run_or_do_not_belong_to_the_fabric_are_no_finding() -> None:
    """The persistence daemon has no part in it, nvidia-imex may belong to a job, one without a reading is none."""
    others = {("nvidia-persistenced",): 0, ("nvidia-imex",): 0}
    running = {RUNNING: {("nvidia-fabricmanager",): 1, ("nvlsm",): 1, **others}}

    assert seen_by("fabric_manager_down", facts_of(running)) == []
    assert seen_by("fabric_manager_down", facts_of({})) == []
    [match] = seen_by("fabric_manager_down", facts_of({RUNNING: {("nvlsm",): 0}}))
    assert match.code == "fabric_service_down"


def refused(*pairs: tuple[int, int], status: int = 5, wired: int = 4) -> Numbers:
    """Refused pairs of GPUs, in both directions, on a node with so many GPUs at NVSwitches."""
    both = [(one, other) for pair in pairs for one, other in (pair, pair[::-1])]
    return of("commwatch_nvlink_switch_links", *([18] * wired)) | {
        "commwatch_gpu_p2p_status": {(*GPUS[one], *GPUS[other], "nvlink"): status for one, other in both}
    }


def test_refused_pairs_are_laid_to_the_gpu_that_they_share() -> None:
    """One broken GPU is one finding, not one for each of its peers."""
    [match] = seen_by("nvlink_p2p_refused", facts_of(refused((0, 2), (1, 2), (3, 2))))

    assert (match.code, match.component.key) == ("nvlink_p2p_refused", ADDRESSES[2])
    assert [one.value for one in match.evidence] == [3, "not supported"]


def pair(one: int, other: int) -> str:
    return f"pair/{ADDRESSES[one]}-{ADDRESSES[other]}"


def gpu(number: int) -> str:
    return f"gpu/{ADDRESSES[number]}"


@in_one_pass(
    "pairs, found",
    [
        ([(0, 1)], {pair(0, 1): None}),
        ([(1, 3)], {pair(1, 3): None}),
        ([(0, 1), (2, 3)], {pair(0, 1): None, pair(2, 3): None}),
        ([(0, 1), (0, 2)], {gpu(0): 2}),
        ([(0, 1), (0, 2), (0, 3), (1, 2)], {gpu(0): 3, pair(1, 2): None}),
        ([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3)], {gpu(0): 3, gpu(1): 3}),
        ([(0, 1), (0, 2), (1, 2)], {gpu(0): 2, gpu(1): 2, gpu(2): 2}),
        ([(0, 2), (0, 3), (1, 2), (1, 3)], {"node": 4}),
        ([*combinations(range(4), 2)], {"node": 6}),
    ],
)
def test_refused_pairs_are_laid_to_no_gpu_that_is_no_worse_than_the_other(
    pairs: list[tuple[int, int]], found: dict[str, int | None]
) -> None:
    """A single pair is named itself, GPUs that are refused alike are found alike, and a fabric in halves is the node's:
    each with the number of its refused pairs."""
    seen = seen_by("nvlink_p2p_refused", facts_of(refused(*pairs)))

    counts = {one.component.identity: [each.value for each in one.evidence] for one in seen}
    assert counts == {
        name: ["not supported"] if count is None else [count, "not supported"] for name, count in found.items()
    }


def test_pairs_that_are_not_wired_to_a_switch_may_refuse() -> None:
    """GPUs that are cabled to each other have pairs without a link; and a pair that is allowed is well."""
    assert seen_by("nvlink_p2p_refused", facts_of(refused((0, 1), wired=1))) == []
    assert seen_by("nvlink_p2p_refused", facts_of(refused((0, 1), status=0))) == []
    shared: Numbers = {**refused((0, 1)), MODE: {("nvidia-fabricmanager",): 1.0}}
    assert seen_by("nvlink_p2p_refused", facts_of(shared)) == []  # the two may be in different partitions
    assert seen_by("nvlink_p2p_refused", facts_of({})) == []
