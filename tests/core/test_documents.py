"""The documents of the API: what is in them, and that they come back from JSON as they were."""

from __future__ import annotations

import msgspec

from commwatch.findings.api_documents import (
    FindingsDocument,
    MetricRecord,
    SeriesRecord,
    SnapshotDocument,
    metric_records,
)
from commwatch.findings.causes import join
from commwatch.findings.codes import CODES
from commwatch.findings.explanations import Explanation
from commwatch.findings.facts import Facts
from commwatch.findings.finding import Component, Evidence, Finding
from commwatch.findings.history import CounterHistory
from commwatch.probes.results.records import ProbeStatus
from commwatch.service.api import probe_record
from commwatch_exporters.node.model import Gpu, NvLink
from commwatch_exporters.snapshot import Series, Snapshot, Value
from support.core import block
from support.findings import finding, incident

LINK = Component("nvlink", "0000:17:00.0/3", "GPU0 link 3", frozenset({"0000:17:00.0/nvlink/3", "0000:17:00.0"}))
PROBE = Component("probe", "all_reduce", "probe all_reduce", frozenset({"0000:17:00.0/nvlink"}))
DOWN = (Evidence("link state", "inactive"),)
SLOW = (Evidence("utilisation", 0.5, "ratio", 0.6, "probe_bandwidth_utilization_low_ratio"),)
STATE = "commwatch_nvlink_link_state"


def findings_document(*findings: Finding) -> FindingsDocument:
    return FindingsDocument(
        version="1.2.3", time=2000.0, simulated=None, maintenance="swap", thresholds="abc", looked_at=1990.0,
        failing_rules=("gpu.states",), findings=findings,
    )  # fmt: skip


def snapshot_document(snapshot: Snapshot) -> SnapshotDocument:
    return SnapshotDocument(
        version="1.2.3", time=2000.0, simulated="h100x8", maintenance=None, metrics=metric_records(snapshot)
    )


def test_a_probe_is_told_with_points_in_time() -> None:
    """Not with ages, which are wrong as soon as the document is read; what is not known is null."""
    status = ProbeStatus("all_reduce", "nccl", "latency 10 µs", age_seconds=60.0, next_run_seconds=840.0)
    record = probe_record(status, 2000.0)

    assert (record.name, record.backend, record.last_result) == ("all_reduce", "nccl", "latency 10 µs")
    assert (record.last_completion_at, record.next_run_at, record.skip_reason) == (1940.0, 2840.0, "")
    never = probe_record(ProbeStatus("pairs", "nccl", skip_reason="gpu_busy: GPU 3"), 2000.0)
    assert (never.last_completion_at, never.next_run_at, never.skip_reason) == (None, None, "gpu_busy: GPU 3")


def test_a_finding_with_its_cause() -> None:
    """All that a reader needs without the list of codes: words, identity, evidence, next step, freshness."""
    slow = incident("probe_bandwidth_low", PROBE, 1000.0, SLOW, "50 %", last_seen=1990.0)
    down = incident("nvlink_down", LINK, 1000.0, DOWN, "the link is inactive", last_seen=1980.0)
    table = {("probe_bandwidth_low", "nvlink_down"): Explanation(0.9, "Traffic has fewer links.")}
    [record] = join([slow, down], table)

    code, fault = CODES["probe_bandwidth_low"], CODES["nvlink_down"]
    assert (record.code, record.title, record.role) == (code.name, code.title, code.role)
    assert (record.severity, record.since, record.last_seen) == ("critical", 1000.0, 1990.0)
    assert (record.meaning, record.next_step, record.alert) == (code.meaning, code.next_step, code.alert)
    assert record.evidence == SLOW
    assert record.component.identity == "probe/all_reduce"
    (told,) = record.causes
    assert (told.code, told.title, told.severity, told.last_seen) == (fault.name, fault.title, "critical", 1980.0)
    assert (told.weight, told.reason, told.detail) == (0.9, "Traffic has fewer links.", "the link is inactive")
    assert told.component.parts == ("0000:17:00.0", "0000:17:00.0/nvlink/3")
    assert told.component.component == LINK


def test_documents_come_back_from_json() -> None:
    """What a command decodes is what the daemon said; the schema stands in it."""
    findings = findings_document(finding("nvlink_down", LINK, 1000.0, DOWN))
    text = msgspec.json.encode(findings)
    assert msgspec.json.decode(text, type=FindingsDocument) == findings
    assert msgspec.json.decode(text)["schema"] == "commwatch-findings/1"

    snapshot = snapshot_document(Snapshot([block({(STATE, ("0", "0000:17:00.0", "3")): 1})]))
    text = msgspec.json.encode(snapshot)
    assert msgspec.json.decode(text, type=SnapshotDocument) == snapshot
    assert msgspec.json.decode(text)["schema"] == "commwatch-snapshot/1"


def test_a_later_daemon_may_say_more() -> None:
    """Fields that this version does not know are passed over."""
    more = {**msgspec.to_builtins(findings_document()), "cluster": "a"}

    assert msgspec.json.decode(msgspec.json.encode(more), type=FindingsDocument) == findings_document()


def test_a_snapshot_holds_what_the_page_shows() -> None:
    """Absent series and hidden metrics are not in it, histograms have the names of their series, NaN is null."""
    histogram = "commwatch_probe_latency_seconds"
    values: dict[Series, Value] = {
        (STATE, ("0", "0000:17:00.0", "3")): 1,
        (STATE, ("0", "0000:17:00.0", "4")): None,
        ("commwatch_gpu_busy", ("0", "0000:17:00.0")): 1,
        (f"{histogram}_bucket", ("all_reduce", "nccl", "+Inf")): 7,
        (f"{histogram}_count", ("all_reduce", "nccl")): 7,
        ("commwatch_gpu_utilization_ratio", ("0", "0000:17:00.0")): float("nan"),
    }
    document = snapshot_document(Snapshot([block(values)], hidden={"commwatch_gpu_busy"}))
    again = msgspec.json.decode(msgspec.json.encode(document), type=SnapshotDocument)
    told = {metric.name: metric for metric in again.metrics}

    assert told.keys() == {STATE, histogram, "commwatch_gpu_utilization_ratio"}
    (state,) = told[STATE].series
    assert (state.labels, state.value, state.name) == ({"gpu": "0", "pci_bus_id": "0000:17:00.0", "link": "3"}, 1, "")
    assert (told[STATE].type, told[histogram].unit) == ("gauge", "seconds")
    assert [(one.name, one.labels.get("le")) for one in told[histogram].series] == [
        (f"{histogram}_bucket", "+Inf"), (f"{histogram}_count", None)]  # fmt: skip
    assert told["commwatch_gpu_utilization_ratio"].series[0].value is None


def test_what_another_version_has_otherwise_is_left_out() -> None:
    """A metric that is not known here, one that lacks a label, and one that is a histogram here."""
    document = snapshot_document(Snapshot([block({(STATE, ("0", "0000:17:00.0", "3")): 1})]))
    others = [
        MetricRecord("commwatch_of_the_future", "gauge", "", (SeriesRecord({}, 1),)),
        MetricRecord("commwatch_gpu_busy", "gauge", "", (SeriesRecord({"gpu": "0"}, 1),)),
        MetricRecord(
            "commwatch_probe_latency_seconds", "gauge", "", (SeriesRecord({"probe": "x", "backend": "y"}, 1),)
        ),
    ]

    node = msgspec.structs.replace(document, metrics=(*document.metrics, *others)).node

    assert [link.number for link, _ in node.each(NvLink.state)] == ["3"]
    assert list(node.each(Gpu.busy)) == []


def test_rules_can_read_a_snapshot_document() -> None:
    """A command sees what the daemon's rules see."""
    values: dict[Series, Value] = {(STATE, ("0", "0000:17:00.0", str(link))): link for link in range(3)}
    snapshot = Snapshot([block(values)])
    document = snapshot_document(snapshot)

    facts = Facts(document.node, CounterHistory({}), 0.0)

    assert [(dict(link.labels), state) for link, state in facts.each(NvLink.state)] == list(snapshot.samples(STATE))
    assert list(facts.each(Gpu.busy)) == []
    assert document.node.part(NvLink, "0000:17:00.0", "2").state == 2
    assert document.node.part(NvLink, "0000:17:00.0", "7").state is None
