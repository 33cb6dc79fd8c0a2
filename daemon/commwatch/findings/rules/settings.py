"""NCCL settings of the processes on the GPUs that do harm on this node."""

from __future__ import annotations

from collections.abc import Iterable

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Match
from commwatch.findings.rules.rule_set import FindingCode, Rule, RuleSet
from commwatch_exporters.node.model import NcclSetting

_CODES = {"harmful": "nccl_setting_harmful", "suspicious": "nccl_setting_suspicious"}
"""By severity of the remark; useless settings and notes do no harm."""


def remarks(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """Settings that are harmful by the audit, or that may be."""
    for setting, processes in facts.each(NcclSetting.processes):
        code = _CODES.get(setting.severity)
        if code is None or processes <= 0:
            continue
        variable, remark = setting.variable, setting.remark
        component = Component("setting", f"{variable}/{remark}", variable)
        evidence = (Evidence("remark", remark), Evidence("processes", processes))
        yield Match(code, component, evidence, remark.replace("_", " "))


_OPENS_AFTER = 120.0
"""Seconds: a job that only starts and ends again opens no finding."""

SETTINGS = RuleSet(
    name="NCCL settings",
    codes=(
        FindingCode(
            name="nccl_setting_harmful",
            title="NCCL setting is harmful",
            severity="warning",
            role="fault",
            quantities=("settings",),
            meaning="GPU processes run with a setting that disables a path between GPUs, an adapter or the choice of "
            "algorithm.",
            next_step="Tell the job's owner to take it out; commwatch diagnose explains it and never shows its value.",
            alert="CommwatchNcclSettingHarmful",
            opens_after=_OPENS_AFTER,
        ),
        FindingCode(
            name="nccl_setting_suspicious",
            title="An NCCL setting may do harm",
            severity="info",
            role="fault",
            quantities=("settings",),
            meaning="GPU processes run with a setting that costs speed or hides errors on most nodes, perhaps on "
            "purpose.",
            next_step="Measure with and without it, or ask the job's owner.",
            opens_after=_OPENS_AFTER,
        ),
    ),
    rules=(Rule(remarks, tuple(_CODES.values()), reads=(NcclSetting.processes,)),),
)
