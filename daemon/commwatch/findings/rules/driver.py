"""The NVIDIA driver as a whole: one that cannot be used leaves the node without GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from commwatch.config.thresholds import Thresholds
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Match
from commwatch.findings.rules.rule_set import FindingCode, Rule, RuleSet
from commwatch_exporters.node.model import Driver
from commwatch_exporters.state_words import DRIVER_FAULTS


class _Code(NamedTuple):
    name: str
    title: str
    meaning: str


_NOTHING_RUNS = "No job can use a GPU of this node."

CODES: Mapping[str, _Code] = {
    "library_mismatch": _Code("driver_mismatch", "The driver's library and kernel module differ",
                              "No new job can use a GPU of this node; running jobs go on."),
    "no_driver": _Code("driver_not_loaded", "The NVIDIA driver is not loaded", _NOTHING_RUNS),
    "no_permission": _Code("driver_refused", "The NVIDIA driver refuses commwatch",
                           "No GPU of this node is watched. Jobs may go on."),
    "no_gpu": _Code("driver_without_gpus", "The NVIDIA driver lists no GPU", _NOTHING_RUNS),
    "unreadable": _Code("driver_failing", "The NVIDIA driver cannot be opened", _NOTHING_RUNS),
    "calls_fail": _Code("driver_calls_failing", "Every call to the NVIDIA driver fails",
                        "No GPU of this node is read. New jobs fail; running ones may go on."),
    "no_answer": _Code("driver_silent", "The NVIDIA driver does not answer",
                       "No GPU of this node is read. Jobs hang in their next call to the driver."),
}  # fmt: skip
"""By reason, as ``commwatch_driver_unusable`` names it."""


def unusable(facts: Facts, thresholds: Thresholds) -> Iterable[Match]:
    """A driver through which no GPU can be read; the daemon reports it only once it has lasted."""
    for _, reason, flag in facts.each_keyed(Driver.unusable):
        if flag == 1 and reason in CODES:
            evidence = Evidence("the driver", DRIVER_FAULTS[reason][0])
            yield Match(CODES[reason].name, Component("node", "", "NVIDIA driver"), (evidence,))


DRIVER = RuleSet(
    name="The driver",
    codes=tuple(
        FindingCode(
            name=code.name,
            title=code.title,
            severity="critical",
            role="fault",
            quantities=("gpus",),
            meaning=code.meaning,
            next_step=f"{DRIVER_FAULTS[reason][1][:1].upper()}{DRIVER_FAULTS[reason][1][1:]}.",
            alert="CommwatchDriverUnusable",
            opens_after=0.0,
        )
        for reason, code in CODES.items()
    ),
    rules=(Rule(unusable, tuple(code.name for code in CODES.values()), reads=(Driver.unusable,)),),
)
