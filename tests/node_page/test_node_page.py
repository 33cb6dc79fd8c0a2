"""The node's page as a browser takes it apart."""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec
import pytest

from commwatch.findings.api_documents import ClosedRecord, closed_record
from commwatch.findings.codes import CODES
from commwatch.findings.finding import Component, Evidence, Match
from commwatch.findings.register import Closed
from commwatch.findings.score.records import Loss, Part, Score
from commwatch.findings.verdict import Verdict, Word
from commwatch.jobs.evidence import JobEvidence
from commwatch.probes.results.record import LatencyCourse
from commwatch.probes.results.records import ProbeStatus
from commwatch.views.heatmap.grid import View
from commwatch.views.node_page.page import render_node_page
from commwatch.views.node_page.records import (
    CollectorStatus,
    Fact,
    Mark,
    Status,
)
from commwatch_exporters.node.model import Node
from commwatch_exporters.snapshot import Series, Snapshot, Value
from support.findings import cause, finding
from support.html_pages import Page, check
from support.node_pages import LOST, SLOTS, TIME, hgx, pairs, status
from support.pages import snapshot_of, whole_catalogue
from support.passes import in_one_pass

GPU = ("0", "0000:17:00.0")


def page_of(values: dict[Series, Value], said: Status | None = None) -> Page:
    """The page of a node with these values."""
    return rendered(snapshot_of(values), said or Status("1.2.3"))


def rendered(snapshot: Snapshot, said: Status) -> Page:
    """The page, taken apart."""
    return check(render_node_page(Node(snapshot), said, "/metrics"))


def board(*, faulty: bool = False) -> Page:
    """The page of an HGX board."""
    return rendered(hgx(faulty=faulty), status(faulty=faulty))


@in_one_pass(
    "word, sign, level",
    [("OK", "✓", "good"), ("Warning", "!", "warn"), ("Critical", "✕", "bad"), ("Unknown", "–", "plain")],
)
def test_the_verdict_comes_first(word: Word, sign: str, level: str) -> None:
    """As the daemon gives it, whatever else the page has; the window's title says it too."""
    low = Score(0.5, "needs work", (), ())
    page = page_of({}, Status("1", verdict=Verdict(word, "the cause"), name="n1", score=low))

    assert page.texts[0] == f"{sign} n1: {word} – commwatch"
    assert page.texts.index(word) < page.texts.index("the cause") < page.texts.index("GPUs and links")
    assert page.count("div", level) == 1


def test_the_score_with_its_parts_and_losses() -> None:
    """What was not measured has a dash, and no bar; what costs less than half a percent is not named."""
    parts = (Part("bandwidth", 1.0, 0.6, ()), Part("latency", 0.0, None, ()))
    losses = (Loss("cap", 0.2, 0.0, "GPU3", "is slow"), Loss("bandwidth", 0.004, 0.9, "GPU1", "is slow"))
    page = page_of({}, Status("1", score=Score(0.714, "needs work", parts, losses)))

    assert {"0.71", "0.60", "–", "held down: GPU3, is slow"} <= {one.strip() for one in page.texts}
    assert "bandwidth: GPU1, is slow" not in page.texts
    assert [names["style"] for tag, names in page.elements if tag == "i"] == ["width:60%", "width:0%"]
    assert "not measured" in page_of({}, Status("1", score=Score(None, "not measured", (), ()))).texts


GPU0 = Component("gpu", "0000:17:00.0", "GPU0")
LINK = Component("nvlink", "0000:17:00.0/3", "GPU0 link 3")
PROBE = Component("probe", "all_reduce", "probe all_reduce")


def test_findings_say_where_why_and_what_next() -> None:
    """Before all tables, in the order in which they are given; a site with documentation gets a link to the code."""
    found = finding("nvlink_down", LINK, TIME - 90, detail="the link is inactive", causes=(cause("xid_fabric", GPU0),))
    page = page_of({}, Status("1", TIME, findings=(found,), documentation="https://docs.example/c"))

    assert [text for level, text in page.headings if level == 3] == ["✕ critical NVLink is down: the link is inactive"]
    assert f"Likely causes: {CODES['xid_fabric'].title}: GPU0 (0000:17:00.0)" in page.texts
    assert f" {CODES['nvlink_down'].next_step}" in page.texts
    assert "GPU0 link 3 (0000:17:00.0/3) · for 90 s · " in page.texts
    assert ("a", {"href": "https://docs.example/c/reference/findings/README.md#nvlink_down"}) in page.elements
    assert page.texts.index("Findings", page.texts.index("Snapshot")) < page.texts.index("GPUs and links")
    assert "Findings" not in [text for _, text in page_of({}).headings]


def test_the_cause_of_a_symptom_leads() -> None:
    """The card names the part to act on, its own time and next step, and keeps the severity; then other causes."""
    name, code = next((name, code) for name, code in CODES.items() if code.severity == "warning")
    causes = (cause(name, GPU0, since=TIME - 240), cause("nvlink_down", LINK))
    slow = finding("probe_bandwidth_low", PROBE, TIME + 5, (), "50 % of it", causes, severity="critical")
    page = page_of({}, Status("1", TIME, findings=[slow]))

    assert [text for level, text in page.headings if level == 3] == [f"✕ critical {code.title}"]
    assert "GPU0 (0000:17:00.0) · for 4 min · " in page.texts
    assert f"Likely explains: {CODES['probe_bandwidth_low'].title}: 50 % of it (probe all_reduce)" in page.texts
    assert "Other likely causes: NVLink is down: GPU0 link 3 (0000:17:00.0/3)" in page.texts
    assert f" {code.next_step}" in page.texts
    alone = msgspec.structs.replace(slow, causes=causes[:1])
    assert "Other likely causes" not in page_of({}, Status("1", TIME, findings=[alone])).words


def test_a_cause_is_drawn_once_with_all_that_it_explains() -> None:
    """Two symptoms of one link are one card, with the evidence of the link."""
    down = cause("nvlink_down", LINK, evidence=(Evidence("link state", "inactive"),))
    slow = finding("probe_bandwidth_low", PROBE, causes=(down,))
    late = finding("probe_latency_high", PROBE, causes=(down, cause("xid_fabric", GPU0)))
    page = page_of({}, Status("1", TIME, findings=[slow, late]))

    assert page.count("article") == 1
    assert page.texts.index("link state: inactive") < page.texts.index("Likely explains")
    assert [f"{CODES[one.code].title} (probe all_reduce)" in page.texts for one in (slow, late)] == [True, True]
    assert f"Other likely causes: {CODES['xid_fabric'].title}: GPU0 (0000:17:00.0)" in page.texts


def test_the_words_of_a_jobs_sources_are_beside_its_finding_or_the_cause() -> None:
    """Of several jobs with one cause each with its job; what a job wrote is text, and no markup."""
    word = JobEvidence("flight_recorder", "Flight Recorder: rank 3 did not call <b>x</b>")
    link = cause("nvlink_down", LINK)
    jobs = [
        finding("job_stuck", Component("process", f"0000:{slot}:00.0", f"job on GPU{number}"), job_evidence=(word,))
        for number, slot in enumerate((17, 18))
    ]
    alone = page_of({}, Status("1", TIME, findings=jobs[:1]))
    assert f"From the job: {word.words}" in alone.texts
    both = page_of({}, Status("1", TIME, findings=[msgspec.structs.replace(one, causes=(link,)) for one in jobs]))
    assert both.count("article") == 1
    assert [f"job on GPU{number}: {word.words}" in both.texts for number in (0, 1)] == [True] * 2
    assert "From the job" not in page_of({}, Status("1", TIME, findings=[finding("nvlink_down", LINK)])).words


def test_evidence_of_an_event_has_its_meaning() -> None:
    """In one line, with the time of the last one; and the runbook of its alert is linked."""
    ecc = Evidence("Xid 48: double-bit ECC error", 1.0, "events", last_at=TIME, meaning="Memory held wrong data.")
    page = page_of({}, Status("1", TIME, findings=[finding("xid_gpu", GPU0, evidence=(ecc,))]))

    assert "Xid 48: double-bit ECC error, once, 08:00 UTC. Memory held wrong data." in page.texts
    assert ("a", {"href": "/runbooks/CommwatchXidGpu.md"}) in page.elements


def test_the_verdict_names_the_places() -> None:
    """Each once, the culprit where one is known, without what is only worth knowing."""
    gpu5 = Component("gpu", "0000:9b:00.0", "GPU5")
    findings = [
        finding("probe_bandwidth_low", PROBE, causes=(cause("nvlink_down", LINK),)),
        finding("gpu_lost", gpu5),
        finding("xid_fabric", gpu5),
        finding("rdma_errors", Component("rdma_port", "mlx5_0/1", "mlx5_0 port 1")),
        finding("ethernet_paused", Component("interface", "ens1")),
        *(finding("gpu_lost", Component("gpu", f"0000:{one}b:00.0", f"GPU{one}")) for one in range(3)),
    ]
    page = page_of({}, Status("1", findings=findings))

    assert page.texts.index("GPU0 link 3, GPU5, mlx5_0 port 1 and 3 more") < page.texts.index("Findings", 12)


def test_many_findings_are_cut_short() -> None:
    """The rest is counted, with where to read it."""
    page = page_of({}, Status("1", findings=[finding("gpu_lost", Component("gpu", str(one))) for one in range(25)]))

    assert page.count("article") == 20
    assert "and 5 more, at " in page.texts


def test_simulated_data_is_said_before_anything_else() -> None:
    """Then the notices in their order."""
    page = page_of({("commwatch_simulated", ()): 1}, Status("1", simulated="a10x2", notices=("A process is stuck.",)))
    said = page.texts.index("Simulated node a10x2: no value on this page comes from hardware.")

    assert said < page.texts.index("A process is stuck.") < page.texts.index("Verdict")
    assert "Simulated" not in page_of({("commwatch_simulated", ()): 0}).words


def test_what_this_node_is() -> None:
    """Terms and what they are here; what is short of the expected is marked."""
    page = page_of(
        {}, Status("1", name="n7", facts=(Fact("Model", "8 × H100"), Fact("GPUs here", "7 of 8", is_short=True)))
    )

    assert page.headings[0] == (1, "n7")
    assert page.texts.index("8 × H100") == page.texts.index("Model") + 1
    assert [(tag, names.get("class")) for tag, names in page.elements if tag == "dd"] == [("dd", None), ("dd", "bad")]


def test_a_gpu_and_its_links() -> None:
    """State, work, links up of those expected, use and PCIe link stand in one row."""
    rows = board(faulty=True).tables["GPUs"]
    model = "NVIDIA H100 80GB HBM3"

    assert rows[0] == [
        "GPU", "State", "Work", "NVLinks up", "NVLink sends", "receives", "PCIe", "PCIe sends", "receives", "Slot",
        "Model",
    ]  # fmt: skip
    assert [one.strip() for one in rows[4]] == [
        "3", "ok", "busy", "17 of 18", "25.5%", "24.7%", "gen5 x16", "12.5%", "0.4%", SLOTS[3], model]  # fmt: skip
    assert rows[2][6].strip() == "gen5 x8 of x16"


def test_a_gpu_that_does_not_answer_keeps_its_row() -> None:
    """Its state says why nothing else of it is known."""
    row = board(faulty=True).tables["GPUs"][1 + LOST]

    assert [one.strip() for one in row] == ["5", "lost", *["–"] * 7, SLOTS[LOST], "NVIDIA H100 80GB HBM3"]


def test_gpus_stand_in_the_order_of_their_numbers() -> None:
    """GPU 10 comes after GPU 9."""
    values: dict[Series, Value] = {("commwatch_gpu_state", (str(gpu), f"0000:{gpu:02x}:00.0")): 0 for gpu in (10, 9, 0)}

    assert [row[0] for row in page_of(values).tables["GPUs"][1:]] == ["0", "9", "10"]


def test_interfaces() -> None:
    """Link, speed and use; what is not known is a dash."""
    rows = board(faulty=True).tables["Network interfaces"]

    assert rows[1:] == [["ens11f0np0", "up", "100 Gbit/s", "–", "–"], ["ens11f1np1", "down", "100 Gbit/s", "–", "–"]]


def test_rdma_ports() -> None:
    """State, speed, use and flaps in one row each, in the order of their numbers; no table where there are none."""
    values: dict[Series, Value] = {
        ("commwatch_rdma_port_state", ("mlx5_10", "1")): 1,
        ("commwatch_rdma_port_state", ("mlx5_2", "1")): 4,
        ("commwatch_rdma_port_info", ("mlx5_2", "1", "InfiniBand", "", "", "", "", "", "")): 1,
        ("commwatch_rdma_port_speed_bytes_per_second", ("mlx5_2", "1")): 50_000_000_000,
        ("commwatch_rdma_port_transmit_utilization_ratio", ("mlx5_2", "1")): 0.25,
        ("commwatch_rdma_port_flaps_total", ("mlx5_2", "1")): 2,
    }

    assert page_of(values).tables["RDMA ports"][1:] == [
        ["mlx5_2/1", "InfiniBand", "active", "400 Gbit/s", "25.0%", "–", "2"],
        ["mlx5_10/1", "–", "down", "–", "–", "–", "–"],
    ]
    assert "RDMA ports" not in page_of({}).tables


def test_ports_with_findings_are_marked() -> None:
    """A port that is down is no trouble by itself; one about which a finding is open is."""
    values: dict[Series, Value] = {
        ("commwatch_rdma_port_state", ("mlx5_0", "1")): 1,
        ("commwatch_rdma_port_info", ("mlx5_0", "1", "Ethernet", "", "", "", "", "", "ens1")): 1,
        ("commwatch_ethernet_carrier", ("ens1",)): 0,
    }
    mark = Mark("critical", "x")

    assert page_of(values).count("td", "bad") == 0
    assert page_of(values, Status("1", marks={"rdma_port/mlx5_0/1": mark})).count("td", "bad") == 1
    assert page_of(values, Status("1", marks={"interface/ens1": mark})).count("td", "bad") == 2


def test_a_pcie_link_below_its_best_is_marked_before_anything_was_learned() -> None:
    """The width that both ends can do says so, without an expected one."""
    values: dict[Series, Value] = {
        ("commwatch_gpu_state", GPU): 0,
        ("commwatch_pcie_link_width_lanes", GPU): 8,
        ("commwatch_pcie_link_degraded", (*GPU, "width")): 1,
    }
    page = page_of(values)

    assert page.tables["GPUs"][1][6].strip() == "x8"
    assert page.count("td", "bad") == 1
    assert page.count("path", "bad") == 1
    values["commwatch_pcie_link_degraded", (*GPU, "width")] = 0
    assert page_of(values).count("td", "bad") == 0


def test_driver_events() -> None:
    """Xids of a GPU in one line with the time of the last one; SXids by switch."""
    gpu, slot = GPU
    values: dict[Series, Value] = {
        ("commwatch_gpu_xid_events_total", (*GPU, "79")): 1,
        ("commwatch_gpu_xid_events_total", (*GPU, "94")): 3,
        ("commwatch_gpu_last_xid_timestamp_seconds", GPU): 1_900_000_000.5,
        ("commwatch_nvswitch_sxid_events_total", ("0000:08:00.0", "12028")): 2,
    }

    assert page_of(values).tables["Driver events"][1:] == [
        [
            f"GPU{gpu} ({slot})",
            "Xid 79: GPU has fallen off the bus (1 ×), 94: contained memory error (3 ×), last 2030-03-17 17:46:40 UTC",
        ],
        ["NVSwitch 0000:08:00.0", "SXid 12028: refused access at egress (2 ×)"],
    ]


def test_a_healthy_node_shows_no_driver_events() -> None:
    """Codes that are exposed with 0 are none, and the heading is left out too."""
    values: dict[Series, Value] = {("commwatch_gpu_xid_events_total", (*GPU, "74")): 0}

    assert "Driver events" not in page_of(values).texts


def test_many_driver_events_are_cut_short() -> None:
    """The page stays readable; the last line counts the others."""
    values: dict[Series, Value] = {
        ("commwatch_nvswitch_sxid_events_total", (f"0000:{switch:02x}:00.0", "12028")): 1 for switch in range(32)
    }
    rows = page_of(values).tables["Driver events"]

    assert len(rows) == 1 + 30 + 1
    assert rows[-1] == ["others", "and 2 more, among the metrics"]


def test_collectors() -> None:
    """Ages and errors as they are known, a dash where nothing is; one that is late is marked."""
    late = CollectorStatus("rdma", True, 40.0, 5.0)
    page = page_of({}, replace(status(faulty=True), collectors=(*status(faulty=True).collectors[:4], late)))
    rows = [[one.strip() for one in row] for row in page.tables["Collectors"]]

    assert rows[1] == ["nvml_identity", "ok", "0.4 s", "1.0 s"]
    assert rows[3] == ["nvml_nvlink_errors 0000:9b:00.0 did not answer within 2 s", "failed", "5 min", "20 s"]
    assert rows[4] == ["nvml_pcie", "–", "–", "60 s"]
    assert page.count("td", "warn") == 2
    assert rows[5][2] == "40 s"


def test_probes() -> None:
    """Last result, baseline, age, and the next run with the reason for skipping the last one."""
    rows = board().tables["Probes"]

    assert rows[1] == ["all_reduce nccl", "latency 18.2 µs, bus bandwidth 358 GB/s", "", "18.2 µs, limit 27.3 µs",
                       "95 s", "in 13 min"]  # fmt: skip
    assert rows[2][5] == "in 10 min skipped: busy: GPU2 runs a process"
    assert rows[4] == ["pairs nccl", "–", "–", "–", "–", "in 12 h skipped: slurm: a job is on the node"]
    assert board(faulty=True).count("td", "bad") > board().count("td", "bad") == 0


def test_a_course_is_drawn_with_its_spikes() -> None:
    """One point for each result, a square where it is above the limit, and words for those who do not see it."""
    course = LatencyCourse((1e-6, 1.1e-6, 3e-6), 1e-6, 1.5e-6)
    page = page_of({}, Status("1", probes=(ProbeStatus("p", "nccl", latencies=course),)))
    (line,) = [names["points"] for tag, names in page.elements if tag == "polyline"]

    assert line is not None
    places = [float(point.split(",")[1]) for point in line.split(" ")]
    assert len(places) == 3
    assert places[2] < places[1] < places[0]  # upwards is slower, and SVG counts downwards
    assert page.count("rect", "spike") == 1
    words = "last 3 latencies: 1 µs to 3 µs, 1 above the limit"
    assert [one["aria-label"] for tag, one in page.elements if "spark" in (one.get("class") or "")] == [words]


@in_one_pass("values", [(5.0,), (0.0, 0.0), (2.0, 2.0, 2.0)])
def test_a_course_of_few_or_equal_results_is_drawn(values: tuple[float, ...]) -> None:
    """A single result does not divide by zero."""
    page_of({}, Status("1", probes=(ProbeStatus("p", "nccl", latencies=LatencyCourse(values, None, None)),)))


def test_pairs() -> None:
    """Numbers with marks, the scale, and what the marks mean; without a matrix what to expect."""
    page = board(faulty=True)
    rows = page.tables["Pairs of GPUs"]

    assert rows[0] == ["", *(f"GPU{one}" for one in range(8))]
    assert rows[4] == ["GPU3", "52A", "52A", "52A", "", "52A", "52A", "52A", "52A"]
    assert " GPU3 is slow in every pair (confidence 97 %)" in page.texts
    assert "No probe of this daemon measures pairs of GPUs." in page_of({}).words


def test_a_slow_pair_stands_out() -> None:
    """The healthy ones do not; the sign of one that was not measured is explained."""
    view = pairs(faulty=True)
    page = page_of({}, Status("1", pairs=replace(view, numbers={(0, 1): 98.0, (0, 3): 52.0})))

    assert page.tables["Pairs of GPUs"][1][1:5] == ["", "98", "-", "52A"]
    assert page.count("td", "slow") == 1
    assert " not measured" in page.texts
    assert page_of({}, Status("1", pairs=view)).words.count("not measured") == 0


@in_one_pass(
    "probe, words",
    [
        (
            ProbeStatus("pairs", "nccl", next_run_seconds=3120.0),
            "First measurement in 52 min; now: pairs waits for its turn among the daily probes.",
        ),
        (
            ProbeStatus("pairs", "nccl", next_run_seconds=0.0),
            "First measurement within a minute; now: pairs waits for its turn among the daily probes.",
        ),
        (
            ProbeStatus("pairs", "nccl", next_run_seconds=600.0, skip_reason="gpu_busy: a job is on GPU3"),
            "First measurement in 10 min; now: the last turn was skipped: gpu_busy: a job is on GPU3.",
        ),
        (
            ProbeStatus(
                "pairs", "nccl", next_run_seconds=60.0, skip_reason="single_gpu: one rank has nobody to talk to"
            ),
            "A node with one GPU has no pairs.",
        ),
        (
            ProbeStatus("pairs", "nccl", last_result="failed: crashed", failed=True, age_seconds=3e5),
            "The last one is too old; next measurement is not planned; now: the last turn failed: failed: crashed.",
        ),
    ],
)
def test_pairs_that_are_not_measured_yet(probe: ProbeStatus, words: str) -> None:
    """When they will be, and what that waits for now."""
    assert words in page_of({}, Status("1", pairs_probe=probe)).words


def test_a_node_without_anything() -> None:
    """Each empty section says so."""
    texts = page_of({}).texts

    assert {
        "No GPU is read at present.",
        "No interface was read.",
        "No probe is configured.",
        "No collector runs.",
        "Neither a GPU nor an adapter is read at present.",
    } <= set(texts)


def test_no_text_is_taken_for_markup() -> None:
    """Names from driver, kernel and errors show as they are, wherever they stand."""
    attack = "\"'><script>alert(1)</script><img src=x onerror=y>&amp;"
    values: dict[Series, Value] = {
        (name, tuple(attack for _ in labels)): value for (name, labels), value in whole_catalogue().items()
    }
    named = Component("gpu", attack, attack)
    said = Status(
        version=attack, name=attack, simulated=attack, verdict=Verdict("Critical", attack), notices=(attack,),
        facts=(Fact(attack, attack, is_short=True),),
        findings=(finding("nvlink_down", named, detail=attack, causes=(cause("xid_fabric", named, detail=attack),)),
                  finding("probe_latency_high", named, causes=(cause("xid_fabric", named, detail=attack),))),
        closed=(closed("nvlink_down", named, note=attack),),
        marks={f"gpu/{attack}": Mark(attack, attack), f"nvlink/{attack}/{attack}": Mark(attack, attack)},
        score=Score(0.5, "needs work", (), (Loss("cap", 0.5, 0.0, attack, attack),)),
        pairs=View(heading=attack, facts=(attack,), unit=attack, names=(attack, attack), numbers={(0, 1): 1.0}, low=0.0,
                   high=1.0, marks={(0, 1): attack}, notes=(f"{attack}  {attack}",)),
        collectors=(CollectorStatus(attack, False, 1.0, 1.0, attack),),
        probes=(ProbeStatus(attack, attack, attack, 1.0, 1.0, attack, LatencyCourse((1.0,), 1.0, 1.0)),),
        documentation=attack,
    )  # fmt: skip
    page = rendered(snapshot_of(values), said)

    assert "alert(1)</script>" in page.words
    assert page.words.count(attack) > 40


def test_text_cannot_hide_or_turn_what_is_beside_it() -> None:
    """Control characters and marks of writing direction are replaced where they are seen."""
    page = page_of({("commwatch_ethernet_carrier", ("e\x00n\u202es\n1",)): 1})

    assert page.tables["Network interfaces"][1][0] == "e\ufffdn\ufffds\ufffd1"


def test_a_text_that_is_no_unicode_does_not_stop_the_page() -> None:
    """File names of Linux may be any bytes; Python shows them as lone surrogates."""
    node = Node(snapshot_of({("commwatch_ethernet_carrier", ("e\udcff",)): 1}))
    text = render_node_page(node, Status("1"), "/metrics")

    assert b"e?" in text.encode("utf-8", "replace")


def test_links_stay_within_the_endpoint() -> None:
    """Metrics, health and API; the documentation where the site has said where it is."""
    page = page_of({})
    links = [names["href"] for tag, names in page.elements if tag == "a"]

    assert links == ["/metrics", "/healthz", "/readyz", "/api/v1/findings", "/api/v1/probes", "/api/v1/snapshot",
                     "/runbooks/", "/still"]  # fmt: skip
    assert "Documentation: docs/using/node-page.md of commwatch" in page.texts
    linked = page_of({}, Status("1", documentation="https://docs.example/c"))
    assert ("a", {"href": "https://docs.example/c/using/node-page.md"}) in linked.elements


def test_the_page_loads_itself_again_unless_it_is_to_stand_still() -> None:
    """Each form links to the other."""
    moving = render_node_page(Node(hgx()), status(), "/metrics")
    still = render_node_page(Node(hgx()), status(), "/metrics", refreshes=False)

    assert '<meta http-equiv="refresh" content="10">' in moving
    assert "http-equiv" not in still
    assert '<a href="/">' in still


def test_a_full_board_is_a_small_page() -> None:
    """8 GPUs with 144 links, 8 ports and a matrix: half of what the budget allows."""
    for faulty in (False, True):
        assert len(render_node_page(Node(hgx(faulty=faulty)), status(faulty=faulty), "/metrics").encode()) < 50_000


def _luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = "".join(one * 2 for one in digits) if len(digits) == 3 else digits
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_texts_have_contrast_on_their_grounds(scheme: int) -> None:
    """WCAG 2.1 AA: 4.5 to 1, on the page and on cards; the browser's test looks at every text there is."""
    colours = re.findall(r":root\{([^}]*)\}", render_node_page(Node(hgx()), status(), "/metrics"))[scheme]
    shades = dict(re.findall(r"--(\w+):(#\w+)", colours))
    pairs = [(one, ground) for one in ("fg", "dim", "good", "bad", "link") for ground in ("bg", "card")]
    for one, ground in [*pairs, ("notefg", "note")]:
        light, dark = sorted((_luminance(shades[one]), _luminance(shades[ground])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (one, ground)


RUN: dict[Series, Value] = {
    ("commwatch_cluster_last_completion_timestamp_seconds", ()): 1_790_000_000.0,
    ("commwatch_cluster_run_nodes", ()): 16,
    ("commwatch_cluster_rail_bandwidth_bytes_per_second", ("0", "mlx5_0", "sent", "nccl")): 50e9,
    ("commwatch_cluster_rail_peer_ratio", ("0", "mlx5_0", "sent", "nccl")): 1.0,
    ("commwatch_cluster_rail_latency_seconds", ("0", "mlx5_0", "nccl")): 3e-6,
    ("commwatch_cluster_pairs", ("0", "mlx5_0", "good")): 3,
    ("commwatch_cluster_rail_bandwidth_bytes_per_second", ("1", "mlx5_1", "sent", "nccl")): 25e9,
    ("commwatch_cluster_rail_peer_ratio", ("1", "mlx5_1", "sent", "nccl")): 0.5,
    ("commwatch_cluster_pairs", ("1", "mlx5_1", "slow")): 3,
    ("commwatch_cluster_suspect_runs", ("nic", "mlx5_1", "bandwidth")): 2,
}


def test_the_rails_stand_with_what_they_are_held_against() -> None:
    """As the last run between nodes measured them; a rail that it names is marked."""
    text = render_node_page(Node(snapshot_of(RUN)), Status("1"), "/metrics")

    assert "Between nodes, 16 measured" in text
    rows = re.findall(r'<tr><th scope="row">(mlx5_\d)</th>(.*?)</tr>', text)
    assert [name for name, _ in rows] == ["mlx5_0", "mlx5_1"]
    well, slow = (re.sub(r"<[^>]+>", " ", cells).split() for _, cells in rows)
    assert well[:3] == ["400", "Gbit/s", "100%"]
    assert slow[:3] == ["200", "Gbit/s", "50%"]
    assert "3 µs" in " ".join(well)
    assert " ".join(slow).endswith("named: 3 slow !")


def test_a_run_that_is_too_old_is_said_and_without_one_nothing_is() -> None:
    """Most nodes are in no cluster that is measured."""
    last = {series: value for series, value in RUN.items() if "last_completion" in series[0]}
    assert "too old to say anything" in render_node_page(Node(snapshot_of(last)), Status("1"), "/metrics")
    assert "Between nodes" not in render_node_page(Node(snapshot_of({})), Status("1"), "/metrics")


def test_the_last_check_between_nodes_says_what_it_blames_the_node_for() -> None:
    """By cause; also that it is nothing."""
    for checks, words in ((2, "blames this node: filtered"), (0, "blames this node for nothing")):
        text = render_node_page(
            Node(snapshot_of({("commwatch_cluster_check_failed", ("filtered",)): checks})), Status("1"), "/metrics"
        )
        assert words in text


def closed(code: str, component: Component, since: float = TIME, note: str = "") -> ClosedRecord:
    """A finding that lasted for a minute."""
    return closed_record(Closed(Match(code, component, ()), since, since + 60, note))


def test_what_was_closed_lately_has_both_times() -> None:
    """The latest five, and how many more; no heading where nothing was closed."""
    titled = [closed("nvlink_down", LINK, TIME + 60 * place, note="" if place else "replaced") for place in range(7)]
    page = page_of({}, Status("1", closed=titled))
    rows = page.tables["Closed in the last day"]

    assert rows[1] == ["critical: NVLink is down (replaced)", "GPU0 link 3 (0000:17:00.0/3)", "2027-01-15 08:00:00 UTC",
                       "2027-01-15 08:01:00 UTC"]  # fmt: skip
    assert [row[0] for row in rows[2:]] == ["critical: NVLink is down"] * 4 + ["and 2 more, at /api/v1/findings"]
    assert "Closed in the last day" not in page_of({}, Status("1")).texts
