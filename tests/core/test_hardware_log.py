"""Hardware events on their way from a run of a collector to the page, the log and the state directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commwatch.node.hardware_events import FABRIC_SXIDS, FABRIC_XIDS, NVLINK5_XIDS
from commwatch.node.xids import Meaning, meaning_of, meanings
from commwatch.readings import Absence, HardwareEvent
from commwatch.sources.kernel_log_lines import MESSAGES
from commwatch_exporters.snapshot import Value
from support.core import SLOTS, collected
from support.fed_daemon import FedDaemon

SWITCH = "0000:06:00.0"
MOST_LINES = 50
"""Of events that come at once, and are logged one by one."""


class Node(FedDaemon):
    """Two GPUs, the second a Blackwell, and an NVSwitch."""

    def events(self, *events: HardwareEvent) -> list[Any]:
        """The log of a run of the kernel log with these events."""
        found = collected()
        found.events.extend(events)
        return [line for line in self.feed("kernel_log", found) if "hardware" in line["event"]]

    def look(self) -> None:
        """Driver and PCI bus list what is here."""
        architectures = ("Hopper", "Blackwell")
        self.feed("nvml_identity", {
            slot: {("commwatch_gpu_info", (str(index), slot, f"GPU-{slot}", "1", "H100", architectures[index])): 1}
            for index, slot in enumerate(SLOTS)
        })  # fmt: skip
        self.feed("pci", {
            SWITCH: {("commwatch_pcie_device_info", (SWITCH, "nvswitch", "", "0", "0x10de", "0x22a3")): 1}
        })  # fmt: skip

    def xids(self, gpu: str, slot: str, code: str) -> Value:
        return self.value("gpu_xid_events_total", gpu, slot, code)

    def recent(self) -> dict[tuple[str, str], Value]:
        """Recent events by counter and code."""
        return {
            (metric, labels[-1]): value
            for metric in ("gpu_xid_events", "nvswitch_sxid_events")
            for labels, value in self.series(f"{metric}_recent").items()
        }


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


def event(
    code: str = "79", sequence: int = 1, kind: str = "xid", device: str = SLOTS[0], text: str = ""
) -> HardwareEvent:
    return HardwareEvent(kind, device, code, "kernel_log", 1.7e9 + sequence, text, "boot", sequence)  # type: ignore[arg-type]  # a kind


def test_recent_events_are_told_until_their_window_is_over(node: Node) -> None:
    """A series of them is there only while there are some, also of a code that has never come before."""
    node.look()
    assert node.recent() == {}

    node.events(event("79", 1), event("79", 2), event("31", 3), event("12020", 4, "sxid", SWITCH))
    expected = {("gpu_xid_events", "79"): 2, ("gpu_xid_events", "31"): 1,
                ("nvswitch_sxid_events", "12020"): 1}  # fmt: skip
    assert node.recent() == expected

    node.feed("kernel_log", seconds=299.0)
    assert node.recent() == expected
    node.feed("kernel_log", seconds=1.0)
    assert node.recent() == {}
    assert node.xids("0", SLOTS[0], "79") == 2


def test_events_from_before_a_restart_are_not_recent(node: Node) -> None:
    """What the state directory holds is known; what the log says since then is new."""
    node.look()
    node.events(event("79", 1))
    node.save()
    node.restart()
    node.events(event("79", 1), event("74", 2))

    assert node.recent() == {("gpu_xid_events", "74"): 1}


def test_codes_of_the_fabric_begin_with_zero(node: Node) -> None:
    """Those of NVLink 5 on a Blackwell alone, those of switches on a switch."""
    node.look()

    assert [node.xids("0", SLOTS[0], code) for code in FABRIC_XIDS] == [0] * len(FABRIC_XIDS)
    assert [node.xids("0", SLOTS[0], code) for code in NVLINK5_XIDS] == [None] * len(NVLINK5_XIDS)
    assert [node.xids("1", SLOTS[1], code) for code in NVLINK5_XIDS] == [0] * len(NVLINK5_XIDS)
    sxids = [node.value("nvswitch_sxid_events_total", SWITCH, code) for code in FABRIC_SXIDS]
    assert sxids == [0] * len(FABRIC_SXIDS)


def test_an_event_is_counted_and_logged_with_meaning_and_advice(node: Node) -> None:
    """One line for each, which an operator can act on; a known event is told once."""
    node.look()
    text = "NETIR_LINK_EVT Fatal XC0 i0 Link 09 (0x025525c6 0x0)"
    (line,) = node.events(event("149", device=SLOTS[1], text=text))

    assert node.xids("1", SLOTS[1], "149") == 1
    assert line["event"] == "hardware event"
    assert line["log_level"] == "warning"
    assert (line["code"], line["device"], line["component"], line["link"]) == ("149", SLOTS[1], "nvlink", 9)
    assert line["happened"] == "2023-11-14T22:13:21.000+00:00"
    assert "drain the node" in line["advice"]
    assert node.events(event("149", device=SLOTS[1], text=text)) == []


def test_an_event_of_which_nothing_is_known_is_logged_all_the_same(node: Node) -> None:
    """Its number and text are all there is."""
    (line,) = node.events(event("9999", text="something new"))

    assert (line["code"], line["text"], "advice" in line) == ("9999", "something new", False)


def test_noise_of_a_job_is_no_warning(node: Node) -> None:
    """An exception of a program is information."""
    assert [line["log_level"] for line in node.events(event("13"))] == ["info"]


def test_what_the_driver_calls_fatal_is_a_warning(node: Node) -> None:
    """Even under a number that is harmless as a rule."""
    texts = ("Non-fatal, Link 03 request", "Fatal, Link 03 request")
    lines = node.events(
        *(event("22013", number, "sxid", device=SWITCH, text=text) for number, text in enumerate(texts, start=1)),
    )

    assert [(line["severity"], line["log_level"]) for line in lines] == [("info", "info"), ("info", "warning")]


def test_a_log_full_of_old_events_does_not_flood_ours(node: Node) -> None:
    """The latest are told, the rest is summed up."""
    lines = node.events(*(event(sequence=number) for number in range(MOST_LINES + 7)))

    assert len(lines) == MOST_LINES + 1
    assert lines[-1]["count"] == 7


def test_totals_survive_a_restart(node: Node) -> None:
    """And so does the place in the kernel log."""
    node.look()
    node.events(event(sequence=1), event(sequence=2))
    node.save()
    node.restart()
    node.look()
    assert node.xids("0", SLOTS[0], "79") == 2
    node.events(event(sequence=1), event(sequence=2), event(sequence=3))

    assert node.xids("0", SLOTS[0], "79") == 3


def test_a_lost_gpu_keeps_its_index(node: Node) -> None:
    """The inventory knows it though the driver does not list it any more."""
    node.look()
    node.feed("nvml_identity", collected({}, Absence(SLOTS[0], "lost", "GPU is lost")))
    node.events(event())

    assert node.xids("0", SLOTS[0], "79") == 1


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
    ("code", "component"),
    [(38, "driver"), (39, "application"), (42, "application"), (67, "gpu"), (73, "application"), (92, "memory")],
)
def test_codes_that_others_label_wrongly_are_not_of_the_fabric(code: int, component: str) -> None:
    """They are copy engine, video units, front end and memory, not PCIe and NVLink."""
    meaning = meanings("xid")[code]

    assert (meaning.component, meaning.fabric) == (component, False)


def test_every_meaning_is_made_of_sentences() -> None:
    """Meaning and advice end with a full stop, the name does not."""
    all_meanings: list[Meaning] = [*meanings("xid").values(), *meanings("sxid").values()]
    all_meanings += [meaning for name in MESSAGES if (meaning := meaning_of(event(name, kind="message"))) is not None]

    assert len(all_meanings) == len(meanings("xid")) + len(meanings("sxid")) + len(MESSAGES)
    for meaning in all_meanings:
        assert meaning.meaning.endswith(".")
        assert meaning.advice.endswith(".")
        assert not meaning.name.endswith(".")
