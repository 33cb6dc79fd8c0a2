"""The table of what explains what fits the codes, and leads nowhere in circles."""

from __future__ import annotations

from graphlib import TopologicalSorter

from commwatch.findings.codes import CODES
from commwatch.findings.explanations import EXPLANATIONS


def test_every_code_of_the_table_exists() -> None:
    """A code that was renamed or taken away must not leave an explanation behind."""
    named = {code for pair in EXPLANATIONS for code in pair}

    assert named - CODES.keys() == set()


def test_every_symptom_has_an_explanation() -> None:
    """A symptom that nothing can explain is a fault or a state."""
    symptoms = {name for name, code in CODES.items() if code.role == "symptom"}

    assert symptoms - {symptom for symptom, _ in EXPLANATIONS} == set()


def test_only_what_may_have_a_cause_is_explained() -> None:
    """A state is neither broken nor slow."""
    assert {symptom for symptom, _ in EXPLANATIONS if CODES[symptom].role == "state"} == set()


def test_nothing_explains_itself() -> None:
    """Not by way of others either: all would stand under each other, and none be told."""
    graph: dict[str, set[str]] = {}
    for symptom, fault in EXPLANATIONS:
        graph.setdefault(symptom, set()).add(fault)

    assert len(list(TopologicalSorter(graph).static_order())) > len(graph)


def test_weights_and_reasons() -> None:
    """A weight is a share, and a reason a sentence."""
    for one in EXPLANATIONS.values():
        assert 0.0 < one.weight <= 1.0
        assert one.reason[0].isupper()
        assert one.reason.endswith(".")


def test_whatever_a_job_may_suffer_from_its_settings_probes_do_not() -> None:
    """Ranks of probes inherit no NCCL setting of a job."""
    explained = {symptom for symptom, fault in EXPLANATIONS if fault.startswith("nccl_setting_")}

    assert not any(symptom.startswith(("probe_", "pair", "part_")) for symptom in explained)
