"""The status page as a browser would take it apart."""

from __future__ import annotations

from html.parser import HTMLParser

from commwatch_exporters.snapshot import Series, Snapshot, Value
from commwatch_exporters.status_page import CollectorStatus, FindingStatus, ProbeStatus, Status, render_status_page
from support.pages import snapshot_of, whole_catalogue

GPU = ("0", "0000:17:00.0")


class Page(HTMLParser):
    """Tables, texts and elements of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.texts: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self._title = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember the element, and begin a row or cell."""
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)
        if tag == "tr":
            self.tables.setdefault(self._title, []).append([])
        if tag in ("td", "th"):
            self.tables[self._title][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        """Elements end in the order in which they began, the other way round."""
        assert tag == self.open.pop()

    def handle_data(self, data: str) -> None:
        """Put a text where it belongs."""
        self.texts.append(data)
        if self.open[-1:] == ["h2"]:
            self._title = data
        if self.open[-1:] in (["td"], ["th"]):
            self.tables[self._title][-1][-1] += data


def page_of(values: dict[Series, Value], status: Status | None = None) -> Page:
    """The page of a node with these values."""
    page = Page(render_status_page(snapshot_of(values), status or Status("1.2.3"), "/metrics"))

    assert page.open == []
    return page


def full_node() -> Snapshot:
    """8 GPUs with 18 links each, and 8 interfaces."""
    values: dict[Series, Value] = {("commwatch_simulated", ()): 1}
    for gpu in range(8):
        labels = (str(gpu), f"0000:{gpu + 1:x}7:00.0")
        values["commwatch_gpu_info", (*labels, "GPU-0", "0", "NVIDIA H100 80GB HBM3", "hopper")] = 1
        values["commwatch_gpu_state", labels] = 1 if gpu == 5 else 0
        if gpu == 5:
            continue
        values["commwatch_gpu_busy", labels] = int(gpu > 2)
        values["commwatch_pcie_link_generation", labels] = 5
        values["commwatch_pcie_link_width_lanes", labels] = 8 if gpu == 2 else 16
        values["commwatch_pcie_link_width_expected_lanes", labels] = 16
        values["commwatch_nvlink_transmit_utilization_ratio", labels] = gpu / 9.3
        values["commwatch_nvlink_receive_utilization_ratio", labels] = gpu / 9.1
        for link in range(18):
            values["commwatch_nvlink_link_state", (*labels, str(link))] = int((gpu, link) != (3, 7))
            values["commwatch_nvlink_link_expected", (*labels, str(link))] = 1
        interface = f"ens{gpu}"
        values["commwatch_ethernet_carrier", (interface,)] = int(gpu != 4)
        values["commwatch_ethernet_speed_bytes_per_second", (interface,)] = None if gpu == 4 else 12_500_000_000
        values["commwatch_ethernet_transmit_utilization_ratio", (interface,)] = 0.01 * gpu
        values["commwatch_ethernet_receive_utilization_ratio", (interface,)] = 0.02 * gpu
    return snapshot_of(values)


def full_status() -> Status:
    """Collectors and probes, some of them in trouble."""
    return Status(
        "0.1.0",
        summary=("node-17, driver 570.124.06, up for 3 h", "8 GPUs, 144 NVLinks, 8 interfaces"),
        notices=("No NVIDIA driver: libnvidia-ml.so.1 was not found. Simulate a node with: commwatch simulate h100x8",),
        collectors=(
            *[CollectorStatus(name, True, 0.4, 1.0) for name in ("gpu", "nvlink", "pcie", "network")],
            CollectorStatus("nvlink_errors", False, 312.0, 20.0, "0000:67:00.0 did not answer within 2 s"),
            CollectorStatus("identity", None, None, 60.0),
        ),
        probes=(
            ProbeStatus("small", "nccl", "18.2 µs, 371 GB/s of 450 GB/s", 95.0, 804.0),
            ProbeStatus("pairs", "nccl", "", None, 43_000.0, "a job is on the node"),
        ),
    )


def test_a_gpu_and_its_links() -> None:
    """State, work, links up of those expected, use and PCIe link stand in one row."""
    rows = Page(render_status_page(full_node(), full_status(), "/metrics")).tables["GPUs"]

    assert rows[0] == ["GPU", "State", "Work", "NVLinks up", "NVLink sends", "receives", "PCIe", "Slot", "Model"]
    model = "NVIDIA H100 80GB HBM3"
    assert ["3", "ok", "busy", "17 of 18", "32.3%", "33.0%", "gen5 x16", "0000:47:00.0", model] == rows[4]
    assert rows[3][6] == "gen5 x8 of x16"


def test_a_gpu_that_does_not_answer_keeps_its_row() -> None:
    """Its state says why nothing else of it is known."""
    rows = Page(render_status_page(full_node(), full_status(), "/metrics")).tables["GPUs"]

    assert rows[6] == ["5", "not answering", "–", "–", "–", "–", "–", "0000:67:00.0", "NVIDIA H100 80GB HBM3"]


def test_gpus_stand_in_the_order_of_their_numbers() -> None:
    """GPU 10 comes after GPU 9."""
    values: dict[Series, Value] = {("commwatch_gpu_state", (str(gpu), f"0000:{gpu:02x}:00.0")): 0 for gpu in (10, 9, 0)}

    assert [row[0] for row in page_of(values).tables["GPUs"][1:]] == ["0", "9", "10"]


def test_interfaces() -> None:
    """Link, speed and use; what a link that is down does not tell is left out."""
    rows = Page(render_status_page(full_node(), full_status(), "/metrics")).tables["Network interfaces"]

    assert rows[4] == ["ens3", "up", "100 Gbit/s", "3.0%", "6.0%"]
    assert rows[5] == ["ens4", "down", "–", "4.0%", "8.0%"]


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
    rows = page_of(values).tables["RDMA ports"]

    assert rows[1:] == [
        ["mlx5_2", "1", "InfiniBand", "active", "400 Gbit/s", "25.0%", "–", "2"],
        ["mlx5_10", "1", "–", "down", "–", "–", "–", "–"],
    ]
    assert "RDMA ports" not in page_of({}).tables


def test_a_pcie_link_below_its_best_is_marked_before_anything_was_learned() -> None:
    """The width that both ends can do says so, without an expected one."""
    values: dict[Series, Value] = {
        ("commwatch_gpu_state", GPU): 0,
        ("commwatch_pcie_link_width_lanes", GPU): 8,
        ("commwatch_pcie_link_degraded", (*GPU, "width")): 1,
    }
    page = page_of(values)

    assert page.tables["GPUs"][1][6] == "x8"
    assert ("td", {"class": "bad"}) in page.elements
    values["commwatch_pcie_link_degraded", (*GPU, "width")] = 0
    assert ("td", {"class": "bad"}) not in page_of(values).elements


def test_signs_of_trouble() -> None:
    """Each kind of sign in words; the links of a GPU with the same trouble are one line."""
    gpu, slot = GPU
    values: dict[Series, Value] = {
        ("commwatch_gpu_recovery_action", GPU): 1,
        ("commwatch_fabric_fault", (*GPU, "degraded_bandwidth")): 1,
        ("commwatch_fabric_incorrect_configuration", GPU): 4,
        ("commwatch_service_running", ("nvidia-fabricmanager",)): 0,
        ("commwatch_pcie_link_degraded", (*GPU, "width")): 1,
        ("commwatch_pcie_device_link_degraded", ("0000:19:00.0", "nic", "generation")): 1,
        ("commwatch_counter_anomaly", ("rdma", "mlx5_2/1", "symbol_errors")): 4,
        **{("commwatch_counter_anomaly", ("nvml", f"{slot}/{link}", "nvlink_bytes")): 2 for link in range(18)},
        ("commwatch_gpu_xid_events_total", (*GPU, "79")): 1,
        ("commwatch_gpu_xid_events_total", (*GPU, "94")): 3,
        ("commwatch_gpu_last_xid_timestamp_seconds", GPU): 1_900_000_000.5,
        ("commwatch_nvswitch_sxid_events_total", ("0000:08:00.0", "12028")): 2,
    }
    part = f"GPU {gpu} ({slot})"

    assert page_of(values).tables["Signs of trouble"][1:] == [
        [part, "the driver asks for: GPU reset"],
        [part, "fabric: degraded bandwidth"],
        [part, "fabric: configured wrongly (code 4)"],
        ["nvidia-fabricmanager", "does not run"],
        [part, "PCIe link below its best: width"],
        ["nic 0000:19:00.0", "PCIe link below its best: generation"],
        [slot, "counter cannot be believed: nvlink_bytes is blank on 18 links"],
        ["mlx5_2/1", "counter cannot be believed: symbol_errors is saturated"],
        [part, "Xid 79 (1 ×), 94 (3 ×), last 2030-03-17 17:46:40 UTC"],
        ["NVSwitch 0000:08:00.0", "SXid 12028 (2 ×)"],
    ]


def test_a_healthy_node_shows_no_signs() -> None:
    """Where all is well the heading is left out too."""
    values: dict[Series, Value] = {
        ("commwatch_gpu_recovery_action", GPU): 0,
        ("commwatch_fabric_fault", (*GPU, "route_unhealthy")): 0,
        ("commwatch_fabric_incorrect_configuration", GPU): 1,
        ("commwatch_service_running", ("nvidia-persistenced",)): 1,
        ("commwatch_pcie_link_degraded", (*GPU, "width")): 0,
        ("commwatch_gpu_xid_events_total", (*GPU, "74")): 0,
    }

    assert "Signs of trouble" not in page_of(values).texts


def test_many_signs_are_cut_short() -> None:
    """The page stays readable; the last line counts the others."""
    values: dict[Series, Value] = {
        ("commwatch_counter_anomaly", ("rdma", f"mlx5_{device:03}/1", "symbol_errors")): 4 for device in range(32)
    }
    rows = page_of(values).tables["Signs of trouble"]

    assert len(rows) == 1 + 30 + 1
    assert rows[-1] == ["", "and 2 more, among the metrics"]


def test_open_findings_come_first() -> None:
    """What is wrong, for how long, why, and what to do; graver ones are marked. No table where nothing is wrong."""
    findings = (
        FindingStatus("critical", "NVLink is down", "GPU0 link 3", 90.0, ("PCIe: GPU0", "fabric"), "Drain the node."),
        FindingStatus("info", "GPU has NVLinks that have never been up", "GPU1", 7200.0),
    )
    page = page_of({("commwatch_gpu_state", GPU): 0}, Status("1", findings=findings))

    assert page.tables["Findings"][1:] == [
        ["critical", "NVLink is down", "GPU0 link 3", "90 s", "PCIe: GPU0fabric", "Drain the node."],
        ["info", "GPU has NVLinks that have never been up", "GPU1", "2 h", "", ""],
    ]
    assert page.texts.index("Findings", page.texts.index("Health")) < page.texts.index("GPUs")
    assert [names for tag, names in page.elements if names.get("class") == "bad"] == [{"class": "bad"}]
    assert "Findings" not in page_of({}).tables


def test_many_findings_are_cut_short() -> None:
    """The rest is counted, with where to read it."""
    findings = [FindingStatus("warning", "slow", str(number), 1.0) for number in range(25)]
    rows = page_of({}, Status("1", findings=findings)).tables["Findings"]

    assert len(rows) == 1 + 20 + 1
    assert rows[-1][1] == "and 5 more, at /api/v1/findings"


def test_collectors_and_probes() -> None:
    """Ages and errors as they are known, a dash where nothing is."""
    tables = page_of({}, full_status()).tables
    collectors, probes = tables["Collectors"], tables["Probes"]

    assert collectors[1] == ["gpu", "ok", "0.4 s", "1.0 s", ""]
    assert collectors[5] == ["nvlink_errors", "failed", "5 min", "20 s", "0000:67:00.0 did not answer within 2 s"]
    assert collectors[6] == ["identity", "–", "–", "60 s", ""]
    assert probes[1] == ["small", "nccl", "18.2 µs, 371 GB/s of 450 GB/s", "95 s", "13 min", ""]
    assert probes[2] == ["pairs", "nccl", "–", "–", "12 h", "a job is on the node"]


def test_a_node_without_anything() -> None:
    """Each empty section says so."""
    texts = page_of({}).texts

    assert {
        "No GPU is read at present.",
        "No interface was read.",
        "No probe is configured.",
        "No collector runs.",
    } <= set(texts)


def test_notices_come_before_the_tables() -> None:
    """Simulated data is said first, then the notices in their order."""
    page = page_of({("commwatch_simulated", ()): 1, ("commwatch_gpu_state", GPU): 0}, full_status())
    first_table = page.texts.index("GPUs")
    simulated = page.texts.index("Simulated node: no value on this page comes from hardware.")

    assert simulated < page.texts.index(full_status().notices[0]) < first_table
    assert "Simulated node" not in "".join(page_of({("commwatch_simulated", ()): 0}).texts)


def test_no_text_is_taken_for_markup() -> None:
    """Names from driver, kernel and errors show as they are, wherever they stand."""
    attack = "\"'><script>alert(1)</script><img src=x onerror=y>&amp;"
    values: dict[Series, Value] = {
        (name, tuple(attack for _ in labels)): value for (name, labels), value in whole_catalogue().items()
    }
    status = Status(
        attack,
        (attack,),
        (attack,),
        (FindingStatus(attack, attack, attack, 1.0, (attack,), attack),),
        (CollectorStatus(attack, True, 1.0, 1.0, attack),),
        (ProbeStatus(attack, attack, attack, 1.0, 1.0, attack),),
    )
    page = page_of(values, status)

    assert {"script", "img"}.isdisjoint(tag for tag, _ in page.elements)
    assert page.texts.count(attack) == 3 + 5 + 2 + 4 + 3 + 1 + 3 + 1


def test_no_foreign_resource_and_small() -> None:
    """No script, no image, no style sheet; links within the endpoint; less than 20 kB for a full node."""
    text = render_status_page(full_node(), full_status(), "/metrics")
    page = Page(text)

    assert {"script", "img", "link", "iframe"}.isdisjoint(tag for tag, _ in page.elements)
    assert [names["href"] for tag, names in page.elements if tag == "a"] == [
        "/metrics", "/api/v1/findings", "/api/v1/snapshot", "/readyz", "/healthz"]  # fmt: skip
    assert "url(" not in text
    assert len(text.encode()) < 20_000
