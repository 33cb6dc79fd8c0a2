"""Faults stand under the symptoms that they explain, only there, and nothing is lost."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from commwatch.findings.causes import (
    LONG_BEFORE,
    LONG_BEFORE_FACTOR,
    READING_SECONDS,
    join,
    seen_within,
)
from commwatch.findings.explanations import EXPLANATIONS, Explanation, Explanations, Way
from commwatch.findings.finding import SEVERITIES, Component, ComponentKind, Evidence, Finding
from commwatch.findings.measured import Measured
from commwatch.findings.register import Incident
from commwatch.findings.rules.gpu_ways import by_nvlink
from support.findings import incident
from support.passes import in_one_pass

GPU, OTHER, THIRD, SWITCH = "0000:17:00.0", "0000:18:00.0", "0000:19:00.0", "0000:16:00.0"
START = 1_700_000_000.0
PEERS = "peers"
"""Part of all traffic among GPUs."""


def finding(code: str, component: Component, since: float = START) -> Incident:
    return incident(code, component, since, (Evidence("what", 1.0),))


def changed(one: Incident, **changes: Any) -> Incident:
    """The same with other fields, of its match as well."""
    of_match = {name: changes.pop(name) for name in ("code", "component", "evidence") if name in changes}
    if "since" in changes:
        changes["first_seen"] = changes.pop("since")
    return replace(one, match=replace(one.match, **of_match), **changes)


def pcie_fault(address: str = GPU, since: float = START) -> Incident:
    return finding("pcie_width_dropped", Component("pcie_link", address, "", frozenset({address})), since)


def nvlink_fault(link: str = "3", address: str = GPU) -> Incident:
    component = Component("nvlink", f"{address}/{link}", "", frozenset({address}))
    return finding("nvlink_recovering", component)


def probe(*parts: str, code: str = "probe_bandwidth_low", since: float = START) -> Incident:
    return finding(code, Component("probe", "all_reduce", "", frozenset(parts)), since=since)


def timeouts(*parts: str) -> Incident:
    return finding("nccl_timeouts", Component("log", "timeout", "", frozenset(parts)))


def causes(found: Finding) -> list[str]:
    return [cause.code for cause in found.causes]


def beside(found: Finding) -> list[str]:
    return [cause.code for cause in found.also_seen]


def told_of(code: str, joined: Iterable[Finding]) -> Finding:
    return next(one for one in joined if one.code == code)


def test_a_slow_probe_with_a_narrow_link_is_one_finding() -> None:
    """As grave as its cause, with the cause's evidence and the reason."""
    [found] = join([pcie_fault(), probe(f"{GPU}/pcie", f"{OTHER}/pcie")])

    assert (found.code, found.severity, causes(found)) == ("probe_bandwidth_low", "critical", ["pcie_width_dropped"])
    assert found.causes[0].evidence == (Evidence("what", 1.0),)
    assert found.causes[0].reason == EXPLANATIONS[("probe_bandwidth_low", "pcie_width_dropped")].reason


@in_one_pass("setting", ["nccl_setting_harmful", "nccl_setting_suspicious"])
@in_one_pass("symptom", ["nccl_timeouts", "nccl_errors"])
@in_one_pass("link", ["pcie_width_dropped", "pcie_generation_low", "pcie_device_narrow", "pcie_device_slow"])
def test_a_degraded_link_comes_before_a_setting_of_the_job(setting: str, symptom: str, link: str) -> None:
    """Both may be why a job gave up; the link harms whatever runs on it."""
    faults = [
        finding(setting, Component("setting", "NCCL_BUFFSIZE/buffer_small")),
        finding(link, Component("pcie_link", GPU, "", frozenset({GPU}))),
    ]
    logs = finding(symptom, Component("log", "timeout", "", frozenset({GPU})))
    found = told_of(symptom, join([*faults, logs]))

    assert [*causes(found), *beside(found)] == [link, setting]


@in_one_pass(
    "fault, parts",
    [
        (pcie_fault(OTHER), {f"{GPU}/pcie"}),
        (pcie_fault(), {f"{GPU}/nvlink", f"{OTHER}/nvlink"}),
        (nvlink_fault(), {f"{GPU}/pcie"}),
        (nvlink_fault("3"), {f"{GPU}/nvlink/2"}),
        (pcie_fault(), {"lo"}),
        (finding("fabric_manager_down", Component("service", "nvidia-fabricmanager")), {f"{GPU}/pcie"}),
        (finding("nccl_setting_harmful", Component("setting", "NCCL_P2P_DISABLE/p2p_off")), {f"{GPU}/pcie"}),
    ],
)
def test_a_fault_that_is_not_on_the_way_stands_beside(fault: Incident, parts: set[str]) -> None:
    """Another GPU, the other way of the same GPU, another link, another kind of traffic."""
    found = join([fault, probe(*parts)])

    assert [one.code for one in found if one.causes] == []
    assert {one.code for one in found} == {fault.code, "probe_bandwidth_low"}


@in_one_pass(
    "fault, parts",
    [
        (pcie_fault(SWITCH), {f"{GPU}/pcie", f"{SWITCH}/pcie"}),
        (nvlink_fault("3"), {f"{GPU}/nvlink"}),
        (nvlink_fault("3"), {f"{GPU}/nvlink/3"}),
        (finding("xid_fabric", Component("gpu", GPU, "", frozenset({GPU}))), {f"{GPU}/nvlink/3"}),
        (finding("fabric_unhealthy", Component("gpu", GPU, "", frozenset({GPU}))), {f"{GPU}/nvlink"}),
        (finding("fabric_manager_down", Component("service", "nvidia-fabricmanager")), {f"{GPU}/nvlink"}),
        (pcie_fault(), set()),
    ],
)
def test_a_fault_on_the_way_stands_under_the_symptom(fault: Incident, parts: set[str]) -> None:
    """A switch above the GPU, a link among all of a GPU, a GPU as a whole, a service; the whole node uses all."""
    found = told_of("probe_bandwidth_low", join([fault, probe(*parts)]))

    assert [*causes(found), *beside(found)] == [fault.code]


@in_one_pass(
    "symptom, fault",
    [
        ("gpu_lost", finding("pcie_fatal", Component("pcie_link", SWITCH, "", frozenset({SWITCH, GPU, OTHER})))),
        ("gpu_lost", finding("xid_fabric", Component("gpu", GPU, "", frozenset({GPU})))),
        ("nvlink_flapping", finding("xid_fabric", Component("gpu", GPU, "", frozenset({GPU})))),
        ("fabric_not_joined", finding("fabric_manager_down", Component("service", "nvidia-fabricmanager"))),
    ],
)
def test_a_fault_of_a_gpu_may_have_a_cause(symptom: str, fault: Incident) -> None:
    """What is above it, what the driver said of it, a service that it needs."""
    [found] = join([fault, finding(symptom, Component("gpu", GPU, "", frozenset({GPU})))])

    assert (found.code, causes(found)) == (symptom, [fault.code])


def test_the_driver_refuses_a_gpu_that_has_not_joined_the_fabric() -> None:
    """Of both, what keeps the GPU out comes first."""
    gpu = Component("gpu", GPU, "", frozenset({GPU}))
    faults = [finding(code, gpu) for code in ("nvlink_p2p_refused", "fabric_not_joined")]
    found = told_of("probe_bandwidth_low", join([*faults, probe(f"{GPU}/nvlink")]))

    assert causes(found) == ["fabric_not_joined", "nvlink_p2p_refused"]


@in_one_pass(
    "symptom, is_explained",
    [
        (finding("pair_slow", Component("pair", "", "", frozenset({by_nvlink(GPU), by_nvlink(OTHER), PEERS}))), True),
        (finding("pair_slow", Component("pair", "", "", frozenset({by_nvlink(GPU), by_nvlink(THIRD), PEERS}))), False),
        (probe(by_nvlink(GPU), by_nvlink(OTHER), by_nvlink(THIRD)), True),
        (probe(by_nvlink(GPU), by_nvlink(THIRD)), False),
    ],
)
def test_a_refused_pair_explains_what_both_of_its_gpus_take_part_in(symptom: Incident, is_explained: bool) -> None:
    pair = finding("nvlink_p2p_refused", Component("pair", f"{GPU}-{OTHER}", "", frozenset({GPU, OTHER})))

    assert causes(told_of(symptom.code, join([pair, symptom]))) == ["nvlink_p2p_refused"] * is_explained


def test_a_refused_pair_that_the_matrix_shows_to_be_quick_explains_nothing() -> None:
    pair = finding("nvlink_p2p_refused", Component("pair", f"{GPU}-{OTHER}", "", frozenset({GPU, OTHER})))
    way = frozenset({by_nvlink(GPU), by_nvlink(OTHER)})
    symptom = changed(probe(*way, PEERS), evidence=(Evidence("bandwidth", 0.4, "ratio"),))
    quick = Measured("pair", way, way, 1.0, START + 10.0)

    found = told_of(symptom.code, join([pair, symptom], measured=[quick]))
    assert (causes(found), beside(found)) == ([], [])


def test_one_fault_stands_under_each_symptom() -> None:
    """Two probes over the same link are two findings with the same cause."""
    step = finding("probe_step", Component("probe", "broadcast", "", frozenset({f"{GPU}/pcie"})))
    found = join([pcie_fault(), probe(f"{GPU}/pcie"), step])

    assert [(one.code, causes(one)) for one in found] == [
        ("probe_bandwidth_low", ["pcie_width_dropped"]), ("probe_step", ["pcie_width_dropped"])
    ]  # fmt: skip


def test_causes_are_ranked_by_what_they_explain() -> None:
    """A job that stalled at a GPU with a narrow link and errors on it, which end calls: the errors first."""
    errors = changed(pcie_fault(), code="pcie_nonfatal")
    [found] = join([errors, pcie_fault(), timeouts(GPU)])

    assert causes(found) == ["pcie_nonfatal", "pcie_width_dropped"]
    assert found.severity == "critical"


def test_the_rail_at_fault_explains_what_the_logs_say_of_the_network() -> None:
    """A GPU's link that is bad at the same time does not."""
    logs = finding("nccl_errors", Component("log", "ib_retry", "", frozenset({"mlx5_0", "mlx5_1", "eth0"})))
    rail = finding("rdma_errors", Component("rdma_port", "mlx5_1/1", "", frozenset({"mlx5_1/1"})))
    found = join([rail, pcie_fault(), logs])

    assert [(one.code, causes(one)) for one in found] == [("pcie_width_dropped", []), ("nccl_errors", ["rdma_errors"])]


def test_what_came_after_explains_nothing() -> None:
    """A part that read well 90 s after the effect began; of a count it is the first event that says so."""
    counted = changed(pcie_fault(), code="pcie_nonfatal", evidence=(Evidence("errors", 40.0, threshold=12.0),))
    for fault in (pcie_fault(), counted):
        for seconds, findings in ((READING_SECONDS, 1), (READING_SECONDS + 1, 2)):
            late = changed(fault, since=START + 3000.0, well_at=START + seconds)
            assert len(join([late, timeouts(GPU)])) == findings
    assert seen_within(changed(counted, evidence=(Evidence("an event", 1),))) == READING_SECONDS


def test_what_was_seen_later_without_having_been_well_before_is_a_cause() -> None:
    """A pair that the first matrix finds slow an hour after the collective was: it may have been so from the start."""
    pair = finding("pair_slow", Component("pair", "a-b", "", frozenset({f"{GPU}/pcie"})), since=START + 3600)
    slow = probe(f"{GPU}/pcie", PEERS)

    assert causes(told_of("probe_bandwidth_low", join([pair, slow]))) == ["pair_slow"]
    well = changed(pair, well_at=START + 1800)
    assert causes(told_of("probe_bandwidth_low", join([well, slow]))) == []


GPUS = tuple(f"0000:{number}7:00.0" for number in range(4))


def low(share: float) -> Incident:
    """An all_reduce over PCIe at this share of what is expected."""
    evidence = (Evidence("share of the expected bandwidth", share, "ratio", 0.6),)
    parts = frozenset({PEERS, *(f"{one}/pcie" for one in GPUS)})
    return changed(probe(), component=Component("probe", "all_reduce", "", parts), evidence=evidence)


def matrix(*slow: tuple[int, int], share: float = 0.4, usual: float = 1.0, at: float = START) -> list[Measured]:
    """All pairs of four GPUs."""
    found = []
    for one, other in combinations(range(4), 2):
        way = frozenset({PEERS, f"{GPUS[one]}/pcie", f"{GPUS[other]}/pcie"})
        found.append(Measured("pair", way, way, share if (one, other) in slow else usual, at))
    return found


OF_GPU_0, OF_GPU_1 = ((0, 1), (0, 2), (0, 3)), ((0, 1), (1, 2), (1, 3))
ALL = tuple(combinations(range(4), 2))


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ([], ["pcie_width_dropped"]),
        (matrix(*OF_GPU_0), ["pcie_width_dropped"]),
        (matrix(*OF_GPU_0, *OF_GPU_1), ["pcie_width_dropped"]),
        (matrix(*OF_GPU_1), []),
        (matrix((0, 1)), []),
        (matrix(), []),
        (matrix(*ALL), []),
        (matrix(*OF_GPU_1, at=START - 1), ["pcie_width_dropped"]),
    ],
    ids=["nothing measured", "all its pairs", "those of two GPUs", "those of another GPU", "one pair of it", "none",
         "all pairs alike", "measured before it began"],
)  # fmt: skip
def test_a_gpu_that_the_matrix_clears_is_not_blamed_for_the_collective(
    measured: list[Measured], expected: list[str]
) -> None:
    """Its fault is as heavy as ever, and stays a finding of its own."""
    found = join([pcie_fault(GPUS[0]), low(0.4)], measured=measured)

    assert causes(told_of("probe_bandwidth_low", found)) == expected
    assert len(found) == 2 - len(expected)


def test_a_loss_that_the_matrix_shows_in_part_explains_a_loss_of_that_size_alone() -> None:
    """All pairs of a GPU at 0.9: enough for a collective at 0.88, and not for one at 0.5."""
    pairs = matrix(*OF_GPU_0, share=0.9)

    assert causes(join([pcie_fault(GPUS[0]), low(0.88)], measured=pairs)[0]) == ["pcie_width_dropped"]
    assert causes(told_of("probe_bandwidth_low", join([pcie_fault(GPUS[0]), low(0.5)], measured=pairs))) == []


def test_pairs_that_are_all_slow_alike_blame_no_gpu() -> None:
    """What they have in common is the host; a GPU of which all pairs are slower than the others' is to blame."""
    evidence = (Evidence("median share of the expected bandwidth", 0.4, "ratio", 0.6),)
    every = Component("node", "", "", frozenset({PEERS, *(f"{one}/pcie" for one in GPUS)}))
    alike = changed(finding("pairs_all_slow", every, since=START + 10), evidence=evidence)

    [worst] = join([pcie_fault(GPUS[0]), alike], measured=matrix(*OF_GPU_0, share=0.2, usual=0.5))
    even = join([pcie_fault(GPUS[0]), alike], measured=matrix(*ALL))

    assert causes(worst) == ["pcie_width_dropped"]
    assert [causes(one) for one in even] == [[], []]


def test_copies_to_the_host_clear_the_link_above_a_gpu() -> None:
    """The link gives all it should to copies; the GPU's pairs were not measured."""
    copies = [Measured("copy", way, way, 1.0, START) for way in (frozenset({f"{one}/pcie"}) for one in GPUS)]
    slow = [replace_share(one, 0.4) if f"{GPUS[0]}/pcie" in one.way else one for one in copies]

    assert causes(told_of("probe_bandwidth_low", join([pcie_fault(GPUS[0]), low(0.4)], measured=copies))) == []
    assert causes(join([pcie_fault(GPUS[0]), low(0.4)], measured=slow)[0]) == ["pcie_width_dropped"]


def replace_share(one: Measured, share: float) -> Measured:
    return one._replace(share=share)


def test_a_part_that_was_measured_to_be_slow_comes_first() -> None:
    """Before a fault of more weight of which nothing was measured."""
    narrow = changed(pcie_fault(GPUS[0]), code="pcie_device_slow")
    heavier = pcie_fault(GPUS[1])
    known = [one for one in matrix(*OF_GPU_0) if f"{GPUS[1]}/pcie" not in one.way]
    [found] = join([narrow, heavier, low(0.4)], measured=known)

    assert causes(join([narrow, heavier, low(0.4)])[0]) == ["pcie_width_dropped", "pcie_device_slow"]
    assert causes(found) == ["pcie_device_slow", "pcie_width_dropped"]


def test_a_link_whose_far_end_is_not_known_is_cleared_by_all_pairs_alone() -> None:
    """It may lead to any GPU: while one pair is slow, it may be the one."""
    down = changed(nvlink_fault("3", GPUS[0]), code="nvlink_down")
    maybe = frozenset({PEERS, f"{GPUS[0]}/nvlink/3"})
    pairs = [Measured("pair", frozenset({PEERS}), maybe, share, START) for share in (1.0, 0.4)]
    slow = changed(low(0.4), component=Component("probe", "all_reduce", "", maybe))

    assert causes(join([down, slow], measured=pairs)[0]) == ["nvlink_down"]
    assert causes(told_of("probe_bandwidth_low", join([down, slow], measured=pairs[:1]))) == []


def test_what_was_there_long_before_explains_less() -> None:
    """It did no harm for days, and a fresh fault of less weight comes before it."""
    fatal = changed(pcie_fault(), code="pcie_fatal")
    weight = EXPLANATIONS[("nccl_timeouts", "pcie_fatal")].weight
    old, older = (join([changed(fatal, since=START - LONG_BEFORE - more), timeouts(GPU)])[0] for more in (0, 1))
    [both] = join([changed(fatal, since=START - LONG_BEFORE - 1), pcie_fault(), timeouts(GPU)])

    assert old.causes[0].weight == weight
    assert older.causes[0].weight == LONG_BEFORE_FACTOR * weight
    assert causes(both) == ["pcie_width_dropped", "pcie_fatal"]


def test_a_switch_that_reports_a_link_blames_the_gpu_at_its_end_alone() -> None:
    """GPU5 is slow and GPU1's link at the switch goes down: the switch's word is about GPU1."""
    switch = finding("sxid_fatal", Component("nvswitch", SWITCH))
    link = finding("nvlink_down", Component("nvlink", f"{OTHER}/3", "", frozenset({OTHER, SWITCH})), START + 2)
    logs = [finding("nccl_timeouts", Component("log", name, "", frozenset({gpu})))
            for name, gpu in (("timeout", OTHER), ("remote", GPU))]  # fmt: skip
    joined = {one.component.key: one for one in join([switch, link, *logs])}

    assert (set(causes(joined["timeout"])), beside(joined["timeout"])) == ({"sxid_fatal", "nvlink_down"}, [])
    assert (causes(joined["remote"]), beside(joined["remote"])) == ([], [])


def test_a_switch_whose_link_is_at_no_known_gpu_is_also_seen() -> None:
    """No GPU shows anything at that time; an Xid of an hour before is about something else."""
    switch = finding("sxid_fatal", Component("nvswitch", SWITCH))
    early = finding("xid_fabric", Component("gpu", OTHER, "", frozenset({OTHER})), START - 3600)
    found = join([switch, early, timeouts(f"{GPU}/nvlink", f"{GPU}/pcie")])

    assert beside(told_of("nccl_timeouts", found)) == ["sxid_fatal"]
    assert {one.code for one in found} == {"sxid_fatal", "xid_fabric", "nccl_timeouts"}


def test_what_jobs_say_without_a_place_has_no_likeliest_cause() -> None:
    """A fault that stands is also seen, and stays a finding; a driver that cannot be used ends every job."""
    narrow, driver = pcie_fault(), finding("driver_mismatch", Component("node", ""))
    found = join([narrow, timeouts()])

    assert (causes(told_of("nccl_timeouts", found)), beside(told_of("nccl_timeouts", found))) == (
        [], ["pcie_width_dropped"]
    )  # fmt: skip
    assert told_of("nccl_timeouts", found).severity == "info"
    assert told_of("pcie_width_dropped", found).key == narrow.key
    assert causes(join([driver, timeouts()])[0]) == ["driver_mismatch"]


def test_errors_that_are_mended_do_not_make_a_probe_over_all_gpus_slow() -> None:
    """A link that is narrower does; of what the pair matrix points at the place is known."""
    parts = (f"{GPU}/pcie", f"{OTHER}/pcie", PEERS)
    retrained = changed(pcie_fault(), code="pcie_retrained")
    suspect = finding("part_suspect", Component("part", "gpu/GPU1", "", frozenset({f"{OTHER}/pcie"})))
    found = told_of("probe_bandwidth_low", join([retrained, pcie_fault(OTHER), suspect, probe(*parts)]))

    assert causes(found) == ["pcie_width_dropped", "part_suspect"]
    assert beside(found) == ["pcie_retrained"]


def test_a_part_that_pairs_of_gpus_point_at_does_not_slow_copies_to_the_host() -> None:
    """Pairs and copies take other ways through a GPU."""
    suspect = finding("part_suspect", Component("part", "gpu/GPU1", "", frozenset({OTHER})))
    to_host, among_gpus = probe(f"{OTHER}/pcie"), probe(f"{OTHER}/pcie", PEERS)

    assert causes(told_of("probe_bandwidth_low", join([suspect, to_host]))) == []
    assert causes(told_of("probe_bandwidth_low", join([suspect, among_gpus]))) == ["part_suspect"]


@in_one_pass(
    "well_before, counted, between",
    [
        (None, "pcie_nonfatal_per_hour", 360),
        (7200, "pcie_nonfatal_per_hour", 360),
        (400, "pcie_nonfatal_per_hour", 40),
        (0, "pcie_nonfatal_per_hour", 0),
        (None, "pcie_nonfatal_per_day", 8640),
        (400, "pcie_nonfatal_per_day", 40),
    ],
)
def test_events_that_had_ceased_by_then_explain_nothing(well_before: int | None, counted: str, between: int) -> None:
    """After a pause that is longer than their mean distance they are over: ten an hour come every six minutes.

    Ten that all came in the 400 s since the part was well come every 40 s.
    """
    count = Evidence("errors", 10.0, threshold=3.0, threshold_origin=counted)
    errors = changed(pcie_fault(since=START - 3000), code="pcie_nonfatal", evidence=(count,))
    for pause, expected in ((0, ["pcie_nonfatal"]), (1, [])):
        last = START - READING_SECONDS - between - pause
        ceased = changed(errors, grew_at=last, well_at=None if well_before is None else last - well_before)
        assert causes(told_of("nccl_timeouts", join([ceased, timeouts(GPU)]))) == expected


def test_the_cause_of_a_cause_is_a_cause() -> None:
    """A fault that explains only the suspect, which explains the probe, is not lost between the two."""
    suspect = finding("part_suspect", Component("part", "gpu/GPU0", "", frozenset({f"{GPU}/pcie"})))
    whole = probe()
    table: Explanations = {
        ("probe_bandwidth_low", "part_suspect"): Explanation(0.5, "A part."),
        ("part_suspect", "pcie_width_dropped"): Explanation(0.8, "A link."),
    }
    [found] = join([pcie_fault(), suspect, whole], table)

    assert [(cause.code, cause.weight) for cause in found.causes] == [
        ("pcie_width_dropped", 0.8), ("part_suspect", 0.5)
    ]  # fmt: skip


def test_the_most_severe_come_first_then_the_oldest() -> None:
    """So that the first line says what to do first."""
    some = [
        finding("probe_starved", Component("probe", "c"), START - 100),
        finding("nvlink_recovering", Component("nvlink", f"{OTHER}/1", "", frozenset({OTHER})), since=START),
        finding("nvlink_replays", Component("nvlink", f"{OTHER}/2", "", frozenset({OTHER})), since=START - 9),
        pcie_fault(),
    ]

    assert [one.code for one in join(some)] == [
        "pcie_width_dropped", "nvlink_replays", "nvlink_recovering", "probe_starved"
    ]  # fmt: skip


def test_what_is_wrong_now_leads() -> None:
    """Before an event whose part reads healthy again; a fault before a symptom of which no cause is known."""
    over = changed(finding("sxid_fatal", Component("nvswitch", SWITCH), START - 60), healthy_since=START)
    slow = probe("lo", since=START - 30)
    errors = finding("nvlink_recovering", Component("nvlink", f"{OTHER}/1", "", frozenset({OTHER})), since=START)

    joined = join([over, slow, errors, pcie_fault()])
    assert [one.code for one in joined] == [
        "pcie_width_dropped", "sxid_fatal", "nvlink_recovering", "probe_bandwidth_low"
    ]  # fmt: skip


def test_an_event_that_was_over_before_the_effect_began_is_no_cause() -> None:
    """Its part read healthy more than the time of a reading before; one that began while it did not is explained."""
    event = finding("xid_fabric", Component("gpu", GPU, "", frozenset({GPU})), START - 600)
    for healthy, expected in ((None, ["xid_fabric"]), (START - READING_SECONDS, ["xid_fabric"]),
                              (START - READING_SECONDS - 1, [])):  # fmt: skip
        assert (
            causes(told_of("nccl_timeouts", join([changed(event, healthy_since=healthy), timeouts(GPU)]))) == expected
        )


WAYS: tuple[Way, ...] = ("", "nvlink", "pcie", "peers")
CODES_OF_TABLE = sorted({code for pair in EXPLANATIONS for code in pair})
KINDS: tuple[ComponentKind, ...] = ("node", "gpu", "probe", "pair", "service")
PARTS = (GPU, OTHER, f"{GPU}/nvlink", f"{GPU}/nvlink/3", f"{GPU}/pcie", f"{OTHER}/pcie", "mlx5_0")


@st.composite
def components(draw: st.DrawFn) -> Component:
    if draw(st.booleans()):
        address = draw(st.sampled_from((GPU, OTHER)))
        return Component("nvlink", f"{address}/{draw(st.sampled_from('23'))}", "", frozenset({address}))
    if draw(st.booleans()):
        address = draw(st.sampled_from((GPU, OTHER)))
        return Component("pcie_link", address, "", frozenset({address, GPU}))
    parts = draw(st.frozensets(st.sampled_from(PARTS), max_size=3))
    return Component(draw(st.sampled_from(KINDS)), draw(st.sampled_from("ab")), "", parts)


@st.composite
def standing(draw: st.DrawFn) -> list[Incident]:
    """Incidents of any codes and components, each once, over some days; of some it is known when they were well."""
    some = draw(
        st.lists(
            st.builds(
                lambda known, *of: changed(made := finding(*of), well_at=made.first_seen if known else None),
                st.booleans(),
                st.sampled_from(CODES_OF_TABLE),
                components(),
                st.integers(0, 5).map(lambda days: START + 40_000.0 * days),
            ),
            max_size=8,
        )
    )
    return list({one.key: one for one in some}.values())


@st.composite
def tables(draw: st.DrawFn) -> Explanations:
    """Explanations without circles: only a later code explains an earlier one."""
    pairs = st.tuples(st.sampled_from(CODES_OF_TABLE), st.sampled_from(CODES_OF_TABLE))
    weights = st.floats(0.05, 1.0)
    rows = draw(st.dictionaries(pairs.filter(lambda one: one[0] < one[1]), weights, max_size=60))
    return {
        pair: Explanation(weight, "So it is.", draw(st.sampled_from(("", "nvlink", "pcie"))))
        for pair, weight in rows.items()
    }


TABLES = st.one_of(st.just(EXPLANATIONS), tables())


def gravity(joined: Iterable[Finding]) -> dict[tuple[str, str], int]:
    """By finding: the rank of the most severe one that it stands in, as itself or as a cause."""
    found: dict[tuple[str, str], int] = {}
    for one in joined:
        rank = SEVERITIES.index(one.severity)
        for key in (one.key, *((cause.code, cause.component.identity) for cause in one.causes)):
            found[key] = min(rank, found.get(key, rank))
    return found


@given(standing(), TABLES)
def test_no_finding_is_lost(some: list[Incident], table: Explanations) -> None:
    """Each stands for itself or under one that does, never both, and keeps its evidence."""
    joined = join(some, table)
    kept = [one.key for one in joined]
    under = {(cause.code, cause.component.identity) for one in joined for cause in one.causes}

    assert len(kept) == len(set(kept))
    assert set(kept) | under == {one.key for one in some}
    assert set(kept) & under == set()
    assert all(cause.evidence for one in joined for cause in one.causes)


@given(standing(), TABLES)
def test_a_fault_is_absorbed_only_where_it_explains(some: list[Incident], table: Explanations) -> None:
    """There is a row of the table for it and something that it explains, of the same parts, not long before it."""
    for one in join(some, table):
        members = {one.key, *((cause.code, cause.component.identity) for cause in one.causes)}
        explained = [other for other in some if other.key in members]
        for cause in one.causes:
            [fault] = [other for other in some if other.key == (cause.code, cause.component.identity)]
            assert any(
                (other.code, fault.code) in table
                and other.component.shares_part(fault.component)
                and (fault.well_at is None or fault.well_at <= other.first_seen + seen_within(fault))
                for other in explained
            )
            assert 0.0 < cause.weight <= 1.0
        weights = [cause.weight for cause in one.causes]
        assert weights == sorted(weights, reverse=True)


@given(standing(), TABLES, st.randoms(use_true_random=True))
def test_the_order_of_looking_does_not_matter(some: list[Incident], table: Explanations, dice: random.Random) -> None:
    shuffled = dice.sample(some, len(some))

    assert join(shuffled, table) == join(some, table)


@given(standing(), TABLES)
def test_nothing_is_graver_when_evidence_goes_away(some: list[Incident], table: Explanations) -> None:
    """Neither the most severe finding nor any single one; and the verdict is as severe as the worst that is open."""
    whole = gravity(join(some, table))
    assert min(whole.values(), default=None) == min((SEVERITIES.index(one.severity) for one in some), default=None)

    for left_out in some:
        rest = gravity(join([one for one in some if one is not left_out], table))
        assert all(rank >= whole[key] for key, rank in rest.items())


def test_link_xid_and_sxid_of_one_link_are_one_finding() -> None:
    """The link is down; what the driver and the NVSwitch reported of it stands under it."""
    link = Component("nvlink", f"{GPU}/3", "", frozenset({GPU, SWITCH}))
    faults = [
        finding("nvlink_down", link),
        finding("xid_fabric", Component("gpu", GPU, "", frozenset({GPU}))),
        finding("sxid_fatal", Component("nvswitch", SWITCH)),
    ]

    assert [one.code for one in join(faults)] == ["nvlink_down"]
    assert sorted(causes(join(faults)[0])) == ["sxid_fatal", "xid_fabric"]
    assert [one.code for one in join(faults[2:])] == ["sxid_fatal"]


@pytest.mark.parametrize(("gpus", "is_cause"), [(1, False), (2, False), (3, True)])
def test_an_sxid_of_the_time_of_an_xid_is_its_cause_only_if_several_gpus_have_one(gpus: int, *, is_cause: bool) -> None:
    """The fabric alone is common to several. No link is known to be down, and one GPU can have an Xid of its own."""
    xids = [finding("xid_fabric", Component("gpu", f"0000:{one}0:00.0", "", frozenset({f"0000:{one}0:00.0"})))
            for one in range(1, gpus + 1)]  # fmt: skip
    joined = join([finding("sxid_fatal", Component("nvswitch", SWITCH), START + 5), *xids])
    alone = [one for one in joined if one.code == "sxid_fatal"]

    assert {tuple(causes(one)) for one in joined if one.code == "xid_fabric"} == {("sxid_fatal",) if is_cause else ()}
    assert len(alone) == (not is_cause)


def test_a_link_that_keeps_going_down_at_the_switch_has_its_sxids_of_the_hour() -> None:
    """It is flapping from the third time on, long after the first SXid; at another switch it is another fault."""
    link = finding("nvlink_flapping", Component("nvlink", f"{GPU}/3", "", frozenset({GPU, SWITCH})))
    joined = join([finding("sxid_fatal", Component("nvswitch", switch), START - 1800) for switch in (SWITCH, OTHER)]
                  + [link])  # fmt: skip

    assert {one.code: [cause.component.key for cause in one.causes] for one in joined} == {
        "nvlink_flapping": [SWITCH], "sxid_fatal": []
    }  # fmt: skip


@pytest.mark.parametrize("code", ["nvlink_flapping", "nvlink_down"])
def test_a_lost_link_of_one_gpu_does_not_hide_that_the_nvswitch_fails_all(code: str) -> None:
    """One link at the switch is down or keeps going down, and all GPUs have an Xid at the time of the SXid."""
    gpus = [f"0000:{one}0:00.0" for one in range(1, 4)]
    xids = [finding("xid_fabric", Component("gpu", gpu, "", frozenset({gpu}))) for gpu in gpus]
    link = finding(code, Component("nvlink", f"{gpus[0]}/3", "", frozenset({gpus[0], SWITCH})))
    joined = join([finding("sxid_fatal", Component("nvswitch", SWITCH)), link, *xids])

    assert [one.code for one in joined if "sxid_fatal" not in causes(one)] == []


def test_links_of_several_gpus_to_one_nvswitch_are_no_trouble_of_another_one() -> None:
    """Both switches report something, and each GPU has lost a link to one of them."""
    gpus = [f"0000:{one}0:00.0" for one in range(1, 4)]
    links = [finding("nvlink_down", Component("nvlink", f"{gpu}/3", "", frozenset({gpu, SWITCH}))) for gpu in gpus]
    joined = join([*links, *(finding("sxid_fatal", Component("nvswitch", switch)) for switch in (SWITCH, OTHER))])

    assert {tuple(cause.component.key for cause in one.causes) for one in joined if one.code == "nvlink_down"} == {
        (SWITCH,)
    }
    assert [one.component.key for one in joined if one.code == "sxid_fatal"] == [OTHER]


@pytest.mark.parametrize(("switch", "is_same"), [(SWITCH, True), ("0000:99:00.0", False)])
def test_an_sxid_of_another_nvswitch_than_that_of_the_link_is_another_fault(switch: str, *, is_same: bool) -> None:
    """Where the driver says to which one the link leads."""
    link = Component("nvlink", f"{GPU}/3", "", frozenset({GPU, switch}))
    joined = join([finding("nvlink_down", link), finding("sxid_fatal", Component("nvswitch", SWITCH))])

    assert (len(joined) == 1) == is_same


@pytest.mark.parametrize(
    "down",
    [
        Component("nvlink", f"{GPU}/3", "", frozenset({GPU, SWITCH})),
        Component("gpu", GPU, "", frozenset({GPU})),
        Component("nvswitch", SWITCH, "", frozenset({GPU, "0000:19:00.0"})),
        Component("node", "", "", frozenset({GPU, "0000:19:00.0"})),
    ],
    ids=["a link", "all links", "links of all GPUs to it", "all links of all GPUs"],
)
def test_an_sxid_is_of_the_gpu_whose_link_at_the_switch_is_down_and_of_no_other(down: Component) -> None:
    """Another GPU that has fallen off its bus at the time is a fault of its own."""
    lost = finding("xid_fabric", Component("gpu", OTHER, "", frozenset({OTHER})), START + 15)
    joined = join([finding("nvlink_down", down), finding("sxid_fatal", Component("nvswitch", SWITCH)), lost])

    assert {one.code: causes(one) for one in joined} == {"nvlink_down": ["sxid_fatal"], "xid_fabric": []}


def stuck(code: str = "job_stuck", since: float = START) -> Incident:
    """A job on one GPU that moved its last payload then, with a port by which its other ranks are reached."""
    return finding(code, Component("process", GPU, "job on GPU0", frozenset({GPU, "mlx5_0"})), since)


def port_down(since: float) -> Incident:
    return finding("rdma_port_down", Component("rdma_port", "mlx5_0/1", "", frozenset({"mlx5_0"})), since)


@in_one_pass(
    "since, is_cause, is_beside",
    [
        (START - 20, True, False),
        (START - 600, True, False),
        (START - 601, False, True),
        (START + READING_SECONDS, True, False),
        (START - 30 * 86_400, False, True),
    ],
)
@in_one_pass("code", ["job_stuck_suspected", "job_stuck", "job_stuck_long"])
def test_a_job_that_went_on_with_a_fault_is_not_stuck_by_it(
    code: str, since: float, is_cause: bool, is_beside: bool
) -> None:
    """It moved data for ten minutes until then: what is older is seen beside it, and stays a finding of its own."""
    found = join([stuck(code), port_down(since)])
    told = told_of(code, found)

    assert (causes(told) == ["rdma_port_down"], beside(told) == ["rdma_port_down"]) == (is_cause, is_beside)
    assert len(found) == (1 if is_cause else 2)


def test_the_earliest_cause_of_a_stuck_job_comes_first() -> None:
    """Whatever the weights; by weight those that began between two readings of the first."""
    link = replace(nvlink_fault(), first_seen=START - 300)
    lost = finding("gpu_lost", Component("gpu", GPU, "", frozenset({GPU})), START - 10)

    assert causes(told_of("job_stuck", join([stuck(), port_down(START - 20), link, lost])))[0] == "nvlink_recovering"
    near = replace(link, first_seen=START - 20 - READING_SECONDS)
    assert causes(told_of("job_stuck", join([stuck(), port_down(START - 20), near])))[0] == "rdma_port_down"


def test_a_fault_elsewhere_or_after_the_job_stood_still_is_no_cause() -> None:
    """Of another GPU, or well at a reading after the last payload."""
    late = port_down(START + 200)
    late.well_at = START + READING_SECONDS + 1
    other = finding("gpu_lost", Component("gpu", OTHER, "", frozenset({OTHER})))

    told = told_of("job_stuck", join([stuck(), late, other]))

    assert not told.causes
    assert not told.also_seen
