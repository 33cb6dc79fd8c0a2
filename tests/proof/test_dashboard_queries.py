"""Every query of every dashboard, asked of a real Prometheus that has scraped simulated nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import pytest

from commwatch.generate.dashboards import DASHBOARDS
from commwatch.generate.dashboards.panels import Dashboard, Due, Query
from support.dashboard_answers import Answers, bad_values, variable_values
from support.dashboard_nodes import FAULTY, HEALTHY, NVLINK_5, WEST, prometheus_with_nodes
from support.dashboards import all_expressions, models, questions

pytestmark = [pytest.mark.prometheus, pytest.mark.xdist_group("dashboard_queries")]

OF_UID = {one.uid: one for one in DASHBOARDS}
NODES = (HEALTHY, FAULTY, NVLINK_5)
DUE_ON: Mapping[Due, tuple[str, ...]] = {
    "always": NODES, "with RDMA": (HEALTHY, FAULTY), "up to NVLink 4": (HEALTHY, FAULTY), "with NVLink 5": (NVLINK_5,),
    "from eight equal nodes": (HEALTHY, FAULTY), "with a fault": (), "elsewhere": (),
}  # fmt: skip
"""Where a query must have an answer; one that needs a fault has it on one of the nodes at least."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    """A server that has scraped a healthy node, one with faults, one with NVLink 5, and peers of the first."""
    with prometheus_with_nodes(all_expressions(), tmp_path_factory.mktemp("nodes")) as server:
        yield Answers(server)


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: one.uid)
def test_queries_are_answered_where_data_is_due(dashboard: Dashboard, answers: Answers) -> None:
    """Each query succeeds on each node, and has data where its panel says that data is due."""
    silent = []
    for question in questions(dashboard):
        with_data = {node for node in NODES if answers.of(question, node)}
        due = set(DUE_ON[question.due])
        if not due <= with_data or (question.due == "with a fault" and not with_data):
            silent.append(f"{question.name} ({question.due}): only on {sorted(with_data)}")

    assert not silent, "\n".join(silent)


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: one.uid)
def test_legends_name_labels_that_are_there(dashboard: Dashboard, answers: Answers) -> None:
    """Each series has the labels that its legend names, and no two series of a query have the same legend."""
    for question in questions(dashboard):
        if not isinstance(question.asked, Query):
            continue
        named = re.findall(r"\{\{(\w+)\}\}", question.asked.legend)
        for node in NODES:
            found = [one.labels for one in answers.of(question, node)]
            assert all(name in labels for labels in found for name in named), question.name
            if named and named != ["le"]:
                legends = [tuple(labels[name] for name in named) for labels in found]
                assert len(legends) == len(set(legends)), question.name


def test_a_healthy_node_shows_no_warning(answers: Answers) -> None:
    """On a healthy node no number and no state has the colour of a warning or a page."""
    warnings = bad_values(answers, HEALTHY)

    assert not warnings, "\n".join(warnings)


def test_a_faulty_node_shows_warnings(answers: Answers) -> None:
    """On the node with faults the panels of what is broken have such a colour.

    Latency against its baseline is none of them: the slow pair was there from the first result on, so that no result
    was good.
    """
    shown = {name.partition(" = ")[0] for name in bad_values(answers, FAULTY)}

    assert shown >= {
        "commwatch-node: Missing", "commwatch-node: Findings / severity",
        "commwatch-node: Links / state", "commwatch-node: Links / missing", "commwatch-node: CRC errors",
        "commwatch-node: Slowest link against its siblings",
        "commwatch-network: Paths of GPUs / width", "commwatch-network: Replays over what is allowed",
        "commwatch-node: GPU clock slowdowns", "commwatch-network: RDMA ports / state",
        "commwatch-network: RDMA retransmissions", "commwatch-network: Services",
        "commwatch-pairs: Share of what is expected",
        "commwatch-fleet: Worst pairs / share of expected", "commwatch-link: Replays",
    }  # fmt: skip


@pytest.mark.parametrize("uid", models())
def test_variables_have_values(uid: str, answers: Answers) -> None:
    """Each variable offers something."""
    for variable in models()[uid]["templating"]["list"]:
        if variable["type"] == "query":
            assert variable_values(answers, variable["definition"], FAULTY), variable["definition"]


@pytest.mark.parametrize("uid", models())
def test_alerts_and_xids_are_marked(uid: str, answers: Answers) -> None:
    """What annotates the panels of the faulty node: its alerts, and on the pages of a node the Xids in their minute."""
    for mark in models()[uid]["annotations"]["list"]:
        found = answers.over_time(mark["expr"], FAULTY)
        assert found, mark["name"]
        assert all(value == 1.0 for series in found for value in series.values)
        if mark["name"] == "Xids":
            assert {series.labels["xid"] for series in found} >= {"74", "79", "94"}
            assert max(len(series.values) for series in found) < 12, "an Xid is marked for its minute, not for good"


def test_a_cluster_that_is_not_there_has_no_nodes(answers: Answers) -> None:
    """The choice of a cluster reaches every number about nodes."""
    about_nodes = [one for one in questions(OF_UID["commwatch-node"]) if "ALERTS" not in one.expression]

    assert [one.name for one in about_nodes if answers.of(one, FAULTY, cluster="elsewhere")] == []


def test_a_cluster_is_told_from_the_others(answers: Answers) -> None:
    """With one cluster chosen, all that the fleet shows is of its nodes; with all of them no line is lost."""
    for question in questions(OF_UID["commwatch-fleet"]):
        chosen, shown = ([one.labels for one in answers.of(question, ".+", cluster=one)] for one in (WEST, ".*"))
        assert {labels["instance"] for labels in chosen if "instance" in labels} <= {NVLINK_5}, question.name
        assert {labels["cluster"] for labels in chosen if "cluster" in labels} <= {WEST}, question.name
        if "10" not in question.expression:  # the highest or lowest ten are others among more nodes
            assert all(labels in shown for labels in chosen), question.name


def test_each_alert_has_a_line(answers: Answers) -> None:
    """The table of alerts of the faulty node has as many lines as alerts are counted."""
    by_name = {one.name: answers.of(one, FAULTY) for one in questions(OF_UID["commwatch-node"])}

    (count,) = by_name["commwatch-node: Pages and tickets"]
    lines = by_name["commwatch-node: Alerts / since"]
    told = sorted((one.labels["alertname"], one.labels["about"].strip()) for one in lines)
    assert len(lines) == count.last, told


def test_an_event_counts_once(answers: Answers) -> None:
    """An Xid that driver and kernel log tell is one on the panels, also where its GPU is lost with it."""
    (question,) = [one for one in questions(OF_UID["commwatch-node"]) if one.name == "commwatch-node: Xids"]
    counted = {(one.labels["gpu"], one.labels["xid"]): max(one.values) for one in answers.of(question, FAULTY)}

    assert counted["6", "79"] == counted["5", "94"] == 1.0
