"""Errors on NVLinks: links that recover again and again, and damage above what a healthy link has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Match
from commwatch.findings.rules.components import nvlink_of
from commwatch.findings.rules.counted import counted, windows_of
from commwatch.findings.rules.nvlink import CAPACITY_PER_LINK, capacity_per_link
from commwatch.findings.rules.rule_set import COUNT_CLOSES_AFTER, DAY, HOUR, FindingCode, Rule, RuleSet
from commwatch_exporters.node.model import NvLink
from commwatch_exporters.node.parts import Column

_RECOVERIES = (NvLink.recovery_errors, NvLink.recoveries)
"""NVLink 1 to 4, and NVLink 5."""

_CRC: Mapping[Column[NvLink], str] = {
    NvLink.crc_flit_errors: "CRC errors of flits per second, over the last minute",
    NvLink.crc_data_errors: "CRC errors of data per second, over the last minute",
}
_CRC_WINDOW = 60.0

_EFFECTIVE_WINDOW = 600.0
"""Seconds over which errors left after forward error correction are counted."""
_BITS = 8.0


def recovering(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Links that retrained too often in an hour or in a day; and for the record, those that did at all."""
    most_hourly, most_daily = thresholds.nvlink_recoveries_per_hour, thresholds.nvlink_recoveries_per_day
    for column in _RECOVERIES:
        in_hour = dict(facts.rises(column, HOUR))
        for link, in_day in facts.rises(column, DAY):
            hourly = in_hour.get(link, 0.0)
            is_many = hourly >= most_hourly or in_day >= most_daily
            if is_many or hourly:
                evidence = (
                    Evidence("recoveries in the last hour", hourly, "", most_hourly, "nvlink_recoveries_per_hour"),
                    Evidence("recoveries in the last day", in_day, "", most_daily, "nvlink_recoveries_per_day"),
                )
                code = "nvlink_recovering" if is_many else "nvlink_recovered"
                yield Match(code, nvlink_of(link), evidence)


def bit_errors(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Links that damage more bits than a healthy one: CRC errors, or errors left after forward error correction."""
    evidence_of: dict[Component, list[Evidence]] = {}
    for column, words in _CRC.items():
        for link, count in facts.rises(column, _CRC_WINDOW):
            rate, limit = count / _CRC_WINDOW, thresholds.nvlink_crc_errors_per_second
            if rate >= limit:
                evidence = Evidence(words, rate, "", limit, "nvlink_crc_errors_per_second")
                evidence_of.setdefault(nvlink_of(link), []).append(evidence)
    for component, evidence in _after_correction(facts, thresholds):
        evidence_of.setdefault(component, []).append(evidence)
    for component, evidences in evidence_of.items():
        yield Match("nvlink_bit_errors", component, tuple(evidences))


def _after_correction(facts: Facts, thresholds: Thresholds) -> Iterable[tuple[Component, Evidence]]:
    """Links above the effective bit error ratio: by the driver's own figure, or by the errors of the last minutes."""
    limit, key = thresholds.nvlink_bit_error_ratio_max, "nvlink_bit_error_ratio_max"
    for link, ratio in facts.each(NvLink.effective_bit_error_ratio):
        if ratio > limit:
            yield nvlink_of(link), Evidence("effective bit error ratio", ratio, "ratio", limit, key)
    for link, count in facts.rises(NvLink.effective_errors, _EFFECTIVE_WINDOW):
        capacity = facts.derived(capacity_per_link).get(link.gpu)
        if capacity is not None and count > (allowed := capacity * _BITS * _EFFECTIVE_WINDOW * limit):
            what = "errors left after correction in the last 10 min"
            yield nvlink_of(link), Evidence(what, count, "", allowed, key)


NVLINK_ERRORS = RuleSet(
    name="NVLink errors",
    codes=(
        FindingCode(
            name="nvlink_recovery_failed",
            title="NVLink recovery failed",
            severity="critical",
            role="fault",
            meaning="The link lost its training and could not recover. Jobs on this GPU fail or hang.",
            next_step="Drain the node; once it is free, run commwatch pause and reset the GPU. Again: call the vendor.",
            alert="CommwatchNvlinkDown",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
            is_event=True,
        ),
        FindingCode(
            name="nvlink_recovering",
            title="NVLink retrains again and again",
            severity="warning",
            role="fault",
            meaning="Jobs go on and wait at each retraining; the link may fail.",
            next_step="Drain the node; note the far end of the link (nvidia-smi nvlink -R); once it is free, run "
            "commwatch pause and reset the GPU. Again on the same link: call the vendor.",
            alert="CommwatchNvlinkRecovering",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
            replaces=("nvlink_recovered",),
        ),
        FindingCode(
            name="nvlink_recovered",
            title="NVLink has retrained",
            severity="info",
            role="state",
            meaning="The link lost its training and recovered within the last hour. Jobs waited for a moment and go "
            "on; once is no fault.",
            next_step="None now. If it happens more often, it becomes a warning.",
            alert="CommwatchNvlinkRecovered",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="nvlink_replays",
            title="NVLink sends packets again",
            severity="warning",
            role="fault",
            meaning="Packets arrived damaged and were resent; a healthy link has no replays. Jobs go on.",
            next_step="Leave the node in service. If it happens again on the same link, drain the node; once it is "
            "free, run commwatch pause and reset the GPU.",
            alert="CommwatchNvlinkReplays",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="nvlink_packet_errors",
            title="NVLink loses or damages packets",
            severity="warning",
            role="fault",
            meaning="The link counts errors that a healthy one never has. Jobs may stall, or fail with an NVLink "
            "error.",
            next_step="Drain the node; once it is free, run commwatch pause and reset the GPU. Again on the same "
            "link: call the vendor.",
            alert="CommwatchNvlinkPacketErrors",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="nvlink_remote_errors",
            title="NVLink receives packets damaged elsewhere",
            severity="warning",
            role="fault",
            meaning="The far side marked packets as bad before forwarding them: another GPU or a switch is at fault. "
            "Jobs may fail.",
            next_step="Run commwatch diagnose: it lists other links and switches with errors, as this link is healthy "
            "(nvidia-smi nvlink -R names its far end). If there are none and it goes on, call the vendor.",
            alert="CommwatchNvlinkRemoteErrors",
            opens_after=0.0,
            closes_after=COUNT_CLOSES_AFTER,
        ),
        FindingCode(
            name="nvlink_bit_errors",
            title="NVLink has too many bit errors",
            severity="warning",
            role="fault",
            meaning="The link has more bit errors than a healthy one. Jobs go on and lose bandwidth; the link may "
            "fail.",
            next_step="Drain the node; note the far end of the link (nvidia-smi nvlink -R); once it is free, run "
            "commwatch pause and reset the GPU. Again on the same link: call the vendor.",
            alert="CommwatchNvlinkBitErrors",
            closes_after=COUNT_CLOSES_AFTER,
        ),
    ),
    rules=(
        counted("nvlink_errors.failed_recovery", "nvlink_recovery_failed"),
        Rule(
            recovering,
            ("nvlink_recovering", "nvlink_recovered"),
            reads=_RECOVERIES,
            thresholds=("nvlink_recoveries_per_hour", "nvlink_recoveries_per_day"),
        ),
        counted("nvlink_errors.replaying", "nvlink_replays"),
        counted("nvlink_errors.packet_errors", "nvlink_packet_errors", "nvlink_remote_errors"),
        Rule(
            bit_errors,
            ("nvlink_bit_errors",),
            reads=(*_CRC, NvLink.effective_bit_error_ratio, NvLink.effective_errors, *CAPACITY_PER_LINK),
            thresholds=("nvlink_crc_errors_per_second", "nvlink_bit_error_ratio_max"),
        ),
    ),
    windows={
        **windows_of("nvlink_recovery_failed", "nvlink_replays", "nvlink_packet_errors", "nvlink_remote_errors"),
        NvLink.effective_errors: _EFFECTIVE_WINDOW,
        **dict.fromkeys(_RECOVERIES, DAY),
        **dict.fromkeys(_CRC, _CRC_WINDOW),
    },
)
