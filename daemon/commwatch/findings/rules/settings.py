"""NCCL settings of the processes on the GPUs that do harm on this node."""

from __future__ import annotations

from collections.abc import Iterable

from commwatch.config.thresholds import Thresholds
from commwatch.findings.code import FindingCode
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Sighting
from commwatch.findings.rules.rule_set import Rule, RuleSet
from commwatch_exporters.node.model import NcclSetting

_CODES = {"harmful": "nccl_setting_harmful", "suspicious": "nccl_setting_suspicious"}
"""By severity of the remark; what is useless or worth a note harms nobody."""


def remarks(facts: Facts, thresholds: Thresholds) -> Iterable[Sighting]:
    """Settings of which the audit says that they harm, or that they may."""
    for setting, processes in facts.each(NcclSetting.processes):
        code = _CODES.get(setting.severity)
        if code is None or processes <= 0:
            continue
        variable, remark = setting.variable, setting.remark
        component = Component("setting", f"{variable}/{remark}", variable)
        evidence = (Evidence("remark", remark), Evidence("processes", processes))
        yield Sighting(code, component, evidence, remark.replace("_", " "))


_OPENS_AFTER = 120.0
"""Seconds: a job that only starts and ends again need not be told of."""

SETTINGS = RuleSet(
    name="NCCL settings",
    codes=(
        FindingCode(
            name="nccl_setting_harmful",
            title="An NCCL setting does harm",
            severity="warning",
            role="fault",
            meaning="Processes on the GPUs run with a setting that takes away what this node has: a path between GPUs, "
            "an adapter, the choice of an algorithm. docs/nccl-settings.md explains the remark.",
            next_step="Have the owner of the job take the setting out, or the file that sets it; commwatch "
            "diagnose says what is wrong with it, never its value.",
            alert="CommwatchNcclSettingHarmful",
            opens_after=_OPENS_AFTER,
        ),
        FindingCode(
            name="nccl_setting_suspicious",
            title="An NCCL setting may do harm",
            severity="info",
            role="fault",
            meaning="Processes on the GPUs run with a setting that costs speed or hides errors on most nodes, and that "
            "somebody may have had a reason for. docs/nccl-settings.md explains the remark.",
            next_step="Measure with and without it, or ask the owner of the job why it is set.",
            opens_after=_OPENS_AFTER,
        ),
    ),
    rules=(Rule(remarks, tuple(_CODES.values()), reads=(NcclSetting.processes,)),),
)
