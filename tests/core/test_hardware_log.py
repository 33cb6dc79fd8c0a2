"""Hardware events on their way from a run of a collector to the page, the log and the state directory."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from commwatch.node.hardware_events import (
    FABRIC_SXIDS,
    FABRIC_XIDS,
    LOGGED_PER_RUN,
    NVLINK5_XIDS,
    HardwareEventsState,
    HardwareLog,
)
from commwatch.node.inventory import Inventory
from commwatch.node.inventory_state import InventoryState
from commwatch.node.observation import Observation, SeenGpu
from commwatch.node.run import Collected, Outcome
from commwatch.node.store import Store
from commwatch.node.xids import Meaning, meaning_of, meanings
from commwatch.readings import HardwareEvent
from commwatch.sources.kernel_log_lines import MESSAGES
from commwatch_exporters.snapshot import Series, Value
from support.core import SLOTS, block, collector

SWITCH = "0000:06:00.0"


class Node:
    """Two GPUs, the second a Blackwell, and an NVSwitch."""

    def __init__(self) -> None:
        self.kept = HardwareEventsState()
        self.start()

    def start(self) -> None:
        """A daemon that has just been started, with what was kept."""
        self.store = Store()
        self.inventory = Inventory(InventoryState(), {}, 600.0)
        self.log = HardwareLog(self.kept, self.store, self.inventory)

    def run(self, name: str, *events: HardwareEvent, time: float = 5.0) -> list[Any]:
        """One run of a collector; returns what was logged."""
        with capture_logs() as logged:
            self.log.on_batch(Outcome(collector(name), Collected({}, [], 0.0, list(events)), None, time))
        return logged

    def look(self) -> None:
        """Driver and PCI bus list what is here."""
        seen = [SeenGpu(f"GPU-{slot}", index, slot, "H100") for index, slot in enumerate(SLOTS)]
        self.inventory.observe(Observation(gpus=tuple(seen)), 5.0)
        architectures = ("Hopper", "Blackwell")
        for index, slot in enumerate(SLOTS):
            info: Series = ("commwatch_gpu_info", (str(index), slot, f"GPU-{slot}", "1", "H100", architectures[index]))
            self.store.put("nvml_identity", slot, block({info: 1}), float("inf"))
        switch: Series = ("commwatch_pcie_device_info", (SWITCH, "nvswitch", "", "0", "0x10de", "0x22a3"))
        self.store.put("pci", SWITCH, block({switch: 1}), float("inf"))
        self.run("nvml_identity")

    def xids(self, gpu: str, slot: str, code: str) -> Value:
        return self.store.snapshot().value("commwatch_gpu_xid_events_total", gpu, slot, code)


@pytest.fixture
def node() -> Node:
    return Node()


def event(
    code: str = "79", sequence: int = 1, kind: str = "xid", device: str = SLOTS[0], text: str = ""
) -> HardwareEvent:
    return HardwareEvent(kind, device, code, "kernel_log", 1.7e9 + sequence, text, "boot", sequence)  # type: ignore[arg-type]  # a kind


def test_recent_events_are_told_until_their_window_is_over(node: Node) -> None:
    """A series of them is there only while there are some, also of a code that has never come before."""
    node.look()
    assert recent(node) == {}

    node.run("kernel_log", event("79", 1), event("79", 2), event("31", 3), event("12020", 4, "sxid", SWITCH))
    expected = {("commwatch_gpu_xid_events", "79"): 2, ("commwatch_gpu_xid_events", "31"): 1,
                ("commwatch_nvswitch_sxid_events", "12020"): 1}  # fmt: skip
    assert recent(node) == expected

    node.run("network", time=304.0)
    assert recent(node) == expected
    node.run("network", time=305.0)
    assert recent(node) == {}
    assert node.xids("0", SLOTS[0], "79") == 2


def test_events_from_before_a_restart_are_not_recent(node: Node) -> None:
    """What the state directory holds is known; what the log says since then is new."""
    node.look()
    node.run("kernel_log", event("79", 1))
    node.kept = node.log.state
    node.start()
    node.run("kernel_log", event("79", 1), event("74", 2))

    assert recent(node) == {("commwatch_gpu_xid_events", "74"): 1}


def recent(node: Node) -> dict[tuple[str, str], Value]:
    """Recent events by counter and code."""
    block = node.store.get("hardware_events", "")
    assert block is not None
    return {
        (metric.removesuffix("_recent"), labels[-1]): value
        for (metric, labels), value in zip(block.layout.series, block.values, strict=True)
        if metric.endswith("_recent")
    }


def test_codes_of_the_fabric_begin_with_zero(node: Node) -> None:
    """Those of NVLink 5 on a Blackwell alone, those of switches on a switch."""
    node.look()

    assert [node.xids("0", SLOTS[0], code) for code in FABRIC_XIDS] == [0] * len(FABRIC_XIDS)
    assert [node.xids("0", SLOTS[0], code) for code in NVLINK5_XIDS] == [None] * len(NVLINK5_XIDS)
    assert [node.xids("1", SLOTS[1], code) for code in NVLINK5_XIDS] == [0] * len(NVLINK5_XIDS)
    sxids = "commwatch_nvswitch_sxid_events_total"
    assert [node.store.snapshot().value(sxids, SWITCH, code) for code in FABRIC_SXIDS] == [0] * len(FABRIC_SXIDS)


def test_an_event_is_counted_and_logged_with_meaning_and_advice(node: Node) -> None:
    """One line for each, which an operator can act on; a known event is told once."""
    node.look()
    text = "NETIR_LINK_EVT Fatal XC0 i0 Link 09 (0x025525c6 0x0)"
    (line,) = node.run("kernel_log", event("149", device=SLOTS[1], text=text))

    assert node.xids("1", SLOTS[1], "149") == 1
    assert line["event"] == "hardware event"
    assert line["log_level"] == "warning"
    assert (line["code"], line["device"], line["component"], line["link"]) == ("149", SLOTS[1], "nvlink", 9)
    assert line["happened"] == "2023-11-14T22:13:21.000+00:00"
    assert "drain the node" in line["advice"]
    assert node.run("kernel_log", event("149", device=SLOTS[1], text=text)) == []


def test_an_event_of_which_nothing_is_known_is_logged_all_the_same(node: Node) -> None:
    """Its number and text are all there is."""
    (line,) = node.run("kernel_log", event("9999", text="something new"))

    assert (line["code"], line["text"], "advice" in line) == ("9999", "something new", False)


def test_noise_of_a_job_is_no_warning(node: Node) -> None:
    """An exception of a program is information."""
    assert [line["log_level"] for line in node.run("kernel_log", event("13"))] == ["info"]


def test_what_the_driver_calls_fatal_is_a_warning(node: Node) -> None:
    """Even under a number that is harmless as a rule."""
    texts = ("Non-fatal, Link 03 request", "Fatal, Link 03 request")
    lines = node.run(
        "kernel_log",
        *(event("22013", number, "sxid", device=SWITCH, text=text) for number, text in enumerate(texts, start=1)),
    )

    assert [(line["severity"], line["log_level"]) for line in lines] == [("info", "info"), ("info", "warning")]


def test_a_log_full_of_old_events_does_not_flood_ours(node: Node) -> None:
    """The latest are told, the rest is summed up."""
    lines = node.run("kernel_log", *(event(sequence=number) for number in range(LOGGED_PER_RUN + 7)))

    assert len(lines) == LOGGED_PER_RUN + 1
    assert lines[-1]["count"] == 7


def test_totals_survive_a_restart(node: Node) -> None:
    """And so does the place in the kernel log."""
    node.look()
    node.run("kernel_log", event(sequence=1), event(sequence=2))
    node.kept = node.log.state

    node.start()
    node.look()
    assert node.xids("0", SLOTS[0], "79") == 2
    node.run("kernel_log", event(sequence=1), event(sequence=2), event(sequence=3))

    assert node.xids("0", SLOTS[0], "79") == 3


def test_a_lost_gpu_keeps_its_index(node: Node) -> None:
    """The inventory knows it though the driver does not list it any more."""
    node.look()
    node.store.drop("nvml_identity", SLOTS[0])
    node.run("kernel_log", event())

    assert node.xids("0", SLOTS[0], "79") == 1


def test_a_run_without_news_leaves_the_block(node: Node) -> None:
    """Every two seconds nothing happens, and nothing is rendered again."""
    node.look()
    kept = node.store.get("hardware_events", "")
    node.run("kernel_log")
    node.run("pci")

    assert node.store.get("hardware_events", "") is kept


# --- what is known of the codes --------------------------------------------------------------------------------------
def test_codes_that_begin_with_zero_are_those_marked_in_the_data() -> None:
    """Two lists that must not drift apart."""
    fabric = {str(code) for code, meaning in meanings("xid").items() if meaning.fabric}
    links = {
        str(code)
        for code, meaning in meanings("sxid").items()
        if meaning.component == "nvlink" and meaning.severity == "critical"
    }

    assert fabric == {*FABRIC_XIDS, *NVLINK5_XIDS}
    assert links == {*FABRIC_SXIDS}


@pytest.mark.parametrize(
    ("code", "component"), [(38, "driver"), (39, "application"), (42, "application"), (67, "gpu"), (73, "application")]
)
def test_codes_that_others_label_wrongly_are_not_of_the_fabric(code: int, component: str) -> None:
    """They are copy engine, video units and front end, not PCIe and NVLink."""
    meaning = meanings("xid")[code]

    assert (meaning.component, meaning.fabric) == (component, False)


def test_92_says_nothing_of_nvlink() -> None:
    """Its data field names memory."""
    assert meanings("xid")[92].component == "memory"


def test_every_meaning_is_made_of_sentences() -> None:
    """Meaning and advice end with a full stop, the name does not."""
    all_meanings: list[Meaning] = [*meanings("xid").values(), *meanings("sxid").values()]
    all_meanings += [meaning for name in MESSAGES if (meaning := meaning_of(event(name, kind="message"))) is not None]

    assert len(all_meanings) == len(meanings("xid")) + len(meanings("sxid")) + len(MESSAGES)
    for meaning in all_meanings:
        assert meaning.meaning.endswith(".")
        assert meaning.advice.endswith(".")
        assert not meaning.name.endswith(".")
