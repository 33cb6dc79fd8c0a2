"""Errors on NVLinks: links that recover again and again, and damage above what a healthy link has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from commwatch.config.thresholds import Thresholds
from commwatch.findings.code import COUNT_CLOSES_AFTER, FindingCode
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Sighting
from commwatch.findings.rules.components import nvlink_of
from commwatch.findings.rules.nvlink import CAPACITY_PER_LINK, capacity_per_link
from commwatch.findings.rules.rule_set import DAY, HOUR, Rule, RuleSet

_RECOVERIES = ("commwatch_nvlink_recovery_errors_total", "commwatch_nvlink_recoveries_total")
"""NVLink 1 to 4, and NVLink 5."""
_FAILED = "commwatch_nvlink_recoveries_failed_total"
_REPLAYS = "commwatch_nvlink_replay_errors_total"
_REMOTE = "commwatch_nvlink_receive_remote_errors_total"
_EFFECTIVE_ERRORS = "commwatch_nvlink_effective_errors_total"
_EFFECTIVE_RATIO = "commwatch_nvlink_effective_bit_error_ratio"

_CRC: Mapping[str, str] = {
    "commwatch_nvlink_crc_flit_errors_total": "CRC errors of flits per second, over the last minute",
    "commwatch_nvlink_crc_data_errors_total": "CRC errors of data per second, over the last minute",
}
_CRC_WINDOW = 60.0

_PACKETS: Mapping[str, str] = {
    "commwatch_nvlink_ecc_data_errors_total": "ECC errors",
    "commwatch_nvlink_malformed_packets_total": "malformed packets",
    "commwatch_nvlink_buffer_overrun_errors_total": "packets dropped for a buffer overrun",
    "commwatch_nvlink_receive_errors_total": "packets received with errors",
    "commwatch_nvlink_receive_general_errors_total": "header mismatches",
    "commwatch_nvlink_local_link_integrity_errors_total": "times that local errors passed their threshold",
    "commwatch_nvlink_transmit_discards_total": "packets discarded before sending",
}
"""Counters that stand still on a healthy link; all but the first of NVLink 5."""

_EFFECTIVE_WINDOW = 600.0
"""Seconds over which errors left after forward error correction are counted."""
_BITS = 8.0


def failed_recovery(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Links of which a retraining failed within the last hour."""
    for labels, count in facts.increases(_FAILED, HOUR):
        evidence = Evidence("failed recoveries in the last hour", count)
        yield Sighting("nvlink_recovery_failed", nvlink_of(labels), (evidence,))


def recovering(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Links that retrained too often in an hour or in a day; and for the record, those that did at all."""
    most_hourly, most_daily = thresholds.nvlink_recoveries_per_hour, thresholds.nvlink_recoveries_per_day
    for metric in _RECOVERIES:
        in_hour = {tuple(labels.values()): rise for labels, rise in facts.increases(metric, HOUR)}
        for labels, in_day in facts.increases(metric, DAY):
            hourly = in_hour.get(tuple(labels.values()), 0.0)
            is_many = hourly >= most_hourly or in_day >= most_daily
            if is_many or hourly:
                evidence = (
                    Evidence("recoveries in the last hour", hourly, "", most_hourly, "nvlink_recoveries_per_hour"),
                    Evidence("recoveries in the last day", in_day, "", most_daily, "nvlink_recoveries_per_day"),
                )
                code = "nvlink_recovering" if is_many else "nvlink_recovered"
                yield Sighting(code, nvlink_of(labels), evidence)


def replaying(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Links that sent again what had not arrived."""
    least = thresholds.nvlink_replays_per_hour
    for labels, count in facts.increases(_REPLAYS, HOUR):
        if count >= least:
            evidence = Evidence("replays in the last hour", count, "", least, "nvlink_replays_per_hour")
            yield Sighting("nvlink_replays", nvlink_of(labels), (evidence,))


def packet_errors(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Links that lost or damaged packets, and those that got them damaged from further away."""
    least, key = thresholds.nvlink_packet_errors_per_hour, "nvlink_packet_errors_per_hour"
    told: dict[Component, list[Evidence]] = {}
    for metric, words in _PACKETS.items():
        for labels, count in facts.increases(metric, HOUR):
            if count >= least:
                evidence = Evidence(f"{words} in the last hour", count, "", least, key)
                told.setdefault(nvlink_of(labels), []).append(evidence)
    for component, evidences in told.items():
        yield Sighting("nvlink_packet_errors", component, tuple(evidences))
    for labels, count in facts.increases(_REMOTE, HOUR):
        if count >= least:
            evidence = Evidence("packets marked bad by the far side in the last hour", count, "", least, key)
            yield Sighting("nvlink_remote_errors", nvlink_of(labels), (evidence,))


def bit_errors(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Links that damage more bits than a healthy one: CRC errors, or errors left after forward error correction."""
    told: dict[Component, list[Evidence]] = {}
    for metric, words in _CRC.items():
        for labels, count in facts.increases(metric, _CRC_WINDOW):
            rate, limit = count / _CRC_WINDOW, thresholds.nvlink_crc_errors_per_second
            if rate >= limit:
                evidence = Evidence(words, rate, "", limit, "nvlink_crc_errors_per_second")
                told.setdefault(nvlink_of(labels), []).append(evidence)
    for component, evidence in _after_correction(facts, thresholds):
        told.setdefault(component, []).append(evidence)
    for component, evidences in told.items():
        yield Sighting("nvlink_bit_errors", component, tuple(evidences))


def _after_correction(facts: Facts, thresholds: Thresholds) -> Iterable[tuple[Component, Evidence]]:
    """Links above the effective bit error ratio: by the driver's own figure, or by the errors of the last minutes."""
    limit, key = thresholds.nvlink_bit_error_ratio_max, "nvlink_bit_error_ratio_max"
    for labels, ratio in facts.series(_EFFECTIVE_RATIO):
        if ratio > limit:
            yield nvlink_of(labels), Evidence("effective bit error ratio", ratio, "ratio", limit, key)
    for labels, count in facts.increases(_EFFECTIVE_ERRORS, _EFFECTIVE_WINDOW):
        capacity = facts.derived(capacity_per_link).get(labels["pci_bus_id"])
        if capacity is not None and count > (allowed := capacity * _BITS * _EFFECTIVE_WINDOW * limit):
            what = "errors left after correction in the last 10 min"
            yield nvlink_of(labels), Evidence(what, count, "", allowed, key)


NVLINK_ERRORS = RuleSet(
    name="NVLink errors",
    codes=(
        FindingCode(
            name="nvlink_recovery_failed",
            title="NVLink recovery failed",
            severity="critical",
            role="fault",
            meaning="The link lost its training and could not regain it. Jobs on this GPU fail or hang.",
            next_step="Drain the node and reset the GPU with the fabric idle; a second failure on the same link is a "
            "case for the vendor.",
            alert="CommwatchNvlinkRecoveryFailed",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="nvlink_recovering",
            title="NVLink retrains again and again",
            severity="warning",
            role="fault",
            meaning="Each retraining stops the link for a moment, and every collective with it. A link that does so "
            "often is about to fail.",
            next_step="Note the link and its far end, and watch whether the same one goes on after a GPU reset; if so, "
            "have the GPU or the baseboard looked at.",
            alert="CommwatchNvlinkRecovering",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="nvlink_recovered",
            title="NVLink has retrained",
            severity="info",
            role="state",
            meaning="The link lost its training and regained it within the last hour. Once is no fault; every "
            "collective waited for a moment.",
            next_step="Nothing need be done unless it goes on; then it becomes a warning.",
            alert="CommwatchNvlinkRecovered",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="nvlink_replays",
            title="NVLink sends packets again",
            severity="warning",
            role="fault",
            meaning="Packets did not arrive whole and were sent again. A healthy link has no replays; one that has "
            "them is slower, and may go on to retrain.",
            next_step="Watch whether they go on, and whether it is always the same link; then reset the GPU when the "
            "node is free, and have it looked at if they come back.",
            alert="CommwatchNvlinkReplays",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="nvlink_packet_errors",
            title="NVLink loses or damages packets",
            severity="warning",
            role="fault",
            meaning="A healthy link does none of what the evidence counts. Jobs may stall, or fail with an "
            "NVLink error.",
            next_step="Look for Xids of this GPU; reset it when the node is free, and have it looked at if the errors "
            "come back on the same link.",
            alert="CommwatchNvlinkPacketErrors",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="nvlink_remote_errors",
            title="NVLink receives what was damaged further away",
            severity="warning",
            role="fault",
            meaning="The far side marked packets as bad before it sent them on: the fault lies beyond this link, at "
            "another GPU or in a switch.",
            next_step="Look for errors of other GPUs' links and for SXids of the NVSwitches; this link is "
            "not to blame.",
            alert="CommwatchNvlinkRemoteErrors",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="nvlink_bit_errors",
            title="NVLink damages too many bits",
            severity="warning",
            role="fault",
            meaning="The link has more bit errors than a healthy one. What they damage is sent again, which costs "
            "bandwidth; the link may be about to fail.",
            next_step="Note the link and its far end; reset the GPU when the node is free, and have GPU or baseboard "
            "looked at if it goes on.",
            alert="CommwatchNvlinkBitErrors",
            closes_after=COUNT_CLOSES_AFTER,
        ),
    ),
    rules=(
        Rule(failed_recovery, ("nvlink_recovery_failed",), reads=(_FAILED,)),
        Rule(
            recovering,
            ("nvlink_recovering", "nvlink_recovered"),
            reads=_RECOVERIES,
            thresholds=("nvlink_recoveries_per_hour", "nvlink_recoveries_per_day"),
        ),
        Rule(replaying, ("nvlink_replays",), reads=(_REPLAYS,), thresholds=("nvlink_replays_per_hour",)),
        Rule(
            packet_errors,
            ("nvlink_packet_errors", "nvlink_remote_errors"),
            reads=(*_PACKETS, _REMOTE),
            thresholds=("nvlink_packet_errors_per_hour",),
        ),
        Rule(
            bit_errors,
            ("nvlink_bit_errors",),
            reads=(*_CRC, _EFFECTIVE_RATIO, _EFFECTIVE_ERRORS, *CAPACITY_PER_LINK),
            thresholds=("nvlink_crc_errors_per_second", "nvlink_bit_error_ratio_max"),
        ),
    ),
    windows={
        _FAILED: HOUR,
        _REPLAYS: HOUR,
        _REMOTE: HOUR,
        _EFFECTIVE_ERRORS: _EFFECTIVE_WINDOW,
        **dict.fromkeys(_RECOVERIES, DAY),
        **dict.fromkeys(_CRC, _CRC_WINDOW),
        **dict.fromkeys(_PACKETS, HOUR),
    },
)
