"""Hardware events are counted once, whoever tells them, over restarts of every part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.node.hardware_events import FABRIC_SXIDS, FABRIC_XIDS, NVLINK5_XIDS
from commwatch.node.xids import Meaning, meaning_of, meanings
from commwatch.readings import Absence, HardwareEvent
from commwatch.sources.kernel_log_lines import MESSAGES
from commwatch_exporters.snapshot import Value
from support.core import SLOTS, collected
from support.examples import examples
from support.fed_daemon import FedDaemon
from support.passes import in_one_pass

GPU, OTHER_GPU = SLOTS
SWITCH, OTHER_SWITCH, STRANGER = "0000:06:00.0", "0000:07:00.0", "0000:99:00.0"
INDEX = {GPU: "0", OTHER_GPU: "1"}
NOW = 1_700_010_000.0
"""As the daemon's clock has it when it starts."""
PAIRING_SECONDS = 60.0
MOST_CODES, MOST_STRANGERS = 64, 16
"""Series of one device and devices that are not the node's, before the rest counts together."""


def driver(code: str = "79", at: float = 0.0, device: str = GPU) -> HardwareEvent:
    return HardwareEvent("xid", device, code, "nvml", NOW + at)


def line(
    sequence: int, code: str = "79", at: float = 0.0, device: str = GPU, boot: str = "one", kind: str = "xid",
    text: str = "",
) -> HardwareEvent:  # fmt: skip
    return HardwareEvent(kind, device, code, "kernel_log", NOW + at, text, boot, sequence)  # type: ignore[arg-type]  # a kind


class Node(FedDaemon):
    """Two GPUs, one of them with NVLink 5, and an NVSwitch."""

    def __init__(self, folder: Path, patched: pytest.MonkeyPatch) -> None:
        super().__init__(folder, patched)
        self.look()

    def look(self) -> None:
        """Driver and PCI bus list what is here."""
        self.feed("nvml_identity", {
            slot: {("commwatch_gpu_info", (INDEX[slot], slot, f"GPU-{slot}", "1", "H100", architecture)): 1}
            for slot, architecture in ((GPU, "Hopper"), (OTHER_GPU, "Blackwell"))
        })  # fmt: skip
        self.feed("pci", {
            SWITCH: {("commwatch_pcie_device_info", (SWITCH, "nvswitch", "", "0", "0x10de", "0x22a3")): 1}
        })  # fmt: skip

    def told(self, *events: HardwareEvent) -> list[Any]:
        """Have events told one after another; returns what the daemon logs of them."""
        logged = []
        for origin, told in groupby(events, lambda one: one.origin):
            found = collected()
            found.events.extend(told)
            logged += self.feed("nvml_events" if origin == "nvml" else origin, found)
        return [one for one in logged if "hardware" in one["event"]]

    def take(self, *events: HardwareEvent) -> list[str]:
        """The same; returns the codes of those that are announced."""
        return [one["code"] for one in self.told(*events)]

    def again(self) -> None:
        """The daemon is restarted: what was saved is read back."""
        self.save()
        self.restart()
        self.look()

    def total(self, code: str = "79", device: str = GPU, metric: str = "gpu_xid_events_total") -> Value:
        return self.value(metric, INDEX.get(device, ""), device, code)

    def recent(self) -> dict[tuple[str, str], Value]:
        """Recent events by counter and code."""
        return {
            (metric, labels[-1]): value
            for metric in ("gpu_xid_events", "nvswitch_sxid_events")
            for labels, value in self.series(f"{metric}_recent").items()
        }

    def totals(self, code: str = "") -> float:
        """Of all GPUs, of one code or of all."""
        found = self.series("gpu_xid_events_total").items()
        return sum(value or 0 for labels, value in found if code in ("", labels[-1]))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


@pytest.mark.parametrize("order", [1, -1], ids=["driver first", "log first"])
@pytest.mark.parametrize("apart", [0, PAIRING_SECONDS])
def test_both_origins_of_one_xid_count_once(node: Node, order: int, apart: float) -> None:
    """In either order; only the first is announced."""
    announced = node.take(*[driver(at=apart), line(1)][::order])

    assert (node.total(), announced) == (1, ["79"])


@pytest.mark.parametrize(
    "other",
    [line(1, at=PAIRING_SECONDS + 1), line(1, "74"), line(1, device=OTHER_GPU)],
    ids=["past the window", "another code", "another GPU"],
)
def test_only_the_same_xid_of_the_same_gpu_within_the_window_is_one_event(node: Node, other: HardwareEvent) -> None:
    """They do not belong together."""
    node.take(driver(), other)

    assert node.totals() == 2


def test_repeated_lines_are_events_of_their_own(node: Node) -> None:
    """Three lines and two events of the driver are three; three events and one line are three."""
    node.take(line(1), line(2), line(3), driver(), driver())
    assert node.total() == 3

    node.take(driver("31"), driver("31"), driver("31"), line(4, "31"))
    assert node.total("31") == 3


def test_a_log_that_is_read_again_counts_nothing_twice(node: Node) -> None:
    """A new worker, or a new daemon, begins with the oldest record; what came meanwhile is counted."""
    log = [line(1), line(5, "13")]
    node.take(*log)
    assert node.take(*log, line(9, "31")) == ["31"]
    node.again()

    assert node.take(*log, line(9, "31"), line(11)) == ["79"]
    assert (node.total(), node.total("13"), node.total("31")) == (2, 1, 1)


def test_an_xid_of_the_driver_is_not_counted_again_after_a_restart(node: Node) -> None:
    """Its line is read by the daemon that came after."""
    node.take(driver())
    node.again()
    node.take(line(7))

    assert node.total() == 1


def test_old_lines_do_not_make_the_wait_for_a_new_one_end(node: Node) -> None:
    """A log read from its beginning passes old records before it comes to the line of the driver's event."""
    node.take(driver(at=1000))
    node.take(line(1, at=-5000), line(2, at=-200), line(3, at=1001))

    assert node.total() == 3


def test_another_boot_begins_again_and_totals_go_on(node: Node) -> None:
    """Numbers of records start again with a boot."""
    node.take(line(500))
    node.take(line(3, at=900, boot="two"))
    node.take(line(3, at=900, boot="two"), line(4, at=901, boot="two"))

    assert node.total() == 3


def test_codes_of_the_fabric_are_there_before_the_first_event(node: Node) -> None:
    """An increase needs a value before it; NVLink 5 has more codes, and switches have their own."""
    assert {node.total(code) for code in FABRIC_XIDS} == {node.total(code, OTHER_GPU) for code in NVLINK5_XIDS} == {0}
    assert {node.total(code) for code in NVLINK5_XIDS} == {None}
    assert {node.value("nvswitch_sxid_events_total", SWITCH, code) for code in FABRIC_SXIDS} == {0}
    assert node.series("gpu_last_xid_timestamp_seconds") == {}


def test_every_kind_has_its_metric(node: Node) -> None:
    """Xids, SXids, lines without a number, and events of the driver without one; a GPU that is no part has no index."""
    node.take(
        line(1, "31", at=1.5), line(2, "20034", device=SWITCH, kind="sxid"), line(3, "fallen_off_bus", kind="message"),
        line(4, "nvlink_detection_failed", device="", kind="message"), line(5, device=STRANGER),
        HardwareEvent("message", GPU, "gpu_unavailable", "nvml", NOW),
    )  # fmt: skip

    assert node.total("31") == 1
    assert node.value("gpu_last_xid_timestamp_seconds", "0", GPU) == NOW + 1.5
    assert node.value("nvswitch_sxid_events_total", SWITCH, "20034") == 1
    assert node.total("fallen_off_bus", metric="kernel_log_gpu_messages_total") == 1
    assert node.total("nvlink_detection_failed", "", "kernel_log_gpu_messages_total") == 1
    assert node.total("gpu_unavailable", metric="gpu_driver_events_total") == 1
    assert node.total(device=STRANGER) == 1


def test_a_part_that_is_no_longer_expected_takes_its_zeros_along(node: Node) -> None:
    """Totals that say something stay."""
    node.take(line(1, device=OTHER_GPU))
    node.feed("nvml_identity", {"": {("commwatch_software_info", ("580", "13", "13.0")): 1}})
    node.feed("pci", {})
    node.observe()
    node.accept()
    node.feed("nvml_identity", {"": {("commwatch_software_info", ("580", "13", "13.0")): 1}})

    assert {labels[1] for labels in node.series("gpu_xid_events_total")} == {OTHER_GPU}
    assert node.series("nvswitch_sxid_events_total") == {}


def test_the_layout_stays_while_no_series_comes(node: Node) -> None:
    """A further event of a known code changes a number only."""
    layouts = []
    for sequence in (1, 2, 3):
        node.take(line(sequence))
        block = node.engine.store.get("hardware_events", "")
        assert block is not None
        layouts.append(block.layout)

    assert layouts[1] is layouts[2]


def test_a_hostile_log_makes_few_series(node: Node) -> None:
    """Codes and devices beyond a bound count as others, and what waits for its other half is given up."""
    node.told(
        *(line(number, str(number)) for number in range(10_000)),
        *(line(20_000 + number, "13", device=f"0000:{number:02x}:1f.0") for number in range(200)),
    )
    series = node.series("gpu_xid_events_total")

    of_gpu = [value or 0 for labels, value in series.items() if labels[1] == GPU]
    assert (len(of_gpu), sum(of_gpu)) == (MOST_CODES + 1, 10_000)
    assert len({labels[1] for labels in series}) == 2 + MOST_STRANGERS + 1
    assert node.total("13", "") == 200 - MOST_STRANGERS
    node.save()
    assert (node.state.path / "judgement.json").stat().st_size < 100_000


TOLD = st.lists(
    st.tuples(st.sampled_from(["both", "driver", "log"]), st.sampled_from(["79", "13"]), st.floats(0, 5)), max_size=30
)


@examples(40, one_fixture=True)
@given(TOLD, st.randoms(use_true_random=True), st.integers(0, 30))
def test_in_whatever_order_the_origins_tell_it_the_count_is_right(
    tmp_path_factory: pytest.TempPathFactory, happened: list[tuple[str, str, float]], chance: Random, restart_at: int
) -> None:
    """Events within one window: of each code as many as the origin that told more, the log read twice and a restart."""
    log = [line(number, code, at) for number, (who, code, at) in enumerate(happened) if who != "driver"]
    nvml = [driver(code, at) for who, code, at in happened if who != "log"]
    order = _interleaved(log, nvml, chance)
    with pytest.MonkeyPatch.context() as patched:
        node = Node(tmp_path_factory.mktemp("node"), patched)
        node.take(*order[:restart_at])
        node.again()
        node.take(*order[restart_at:])
        node.take(*log)

        for code in ("79", "13"):
            assert node.totals(code) == max(_count(log, code), _count(nvml, code))


def _interleaved(log: list[HardwareEvent], nvml: list[HardwareEvent], chance: Random) -> list[HardwareEvent]:
    merged, left, right = [], list(log), list(nvml)
    while left or right:
        source = left if left and (not right or chance.random() < 0.5) else right
        merged.append(source.pop(0))
    return merged


def _count(events: Iterable[HardwareEvent], code: str) -> int:
    return sum(event.code == code for event in events)


NONFATAL_LINE = "NETIR_LINK_EVT Nonfatal XC0 i0 Link 05 (0x004505c6 0x00000000 0x00000000)"
FATAL_LINE = NONFATAL_LINE.replace("Nonfatal", "Fatal")


@pytest.mark.parametrize("order", [1, -1], ids=["driver first", "log first"])
def test_what_was_not_fatal_is_counted_by_its_line(node: Node, order: int) -> None:
    """Also where the driver told the Xid before, without saying so; a line that is read again counts once."""
    told = line(1, "149", device=OTHER_GPU, text=NONFATAL_LINE)
    node.take(*[driver("149", device=OTHER_GPU), told][::order])
    node.take(line(2, "149", at=1, device=OTHER_GPU, text=FATAL_LINE), told)
    node.again()

    assert node.total("149", OTHER_GPU, "gpu_xid_nonfatal_events_total") == 1
    assert node.total("149", OTHER_GPU, "gpu_xid_fatal_events_total") == 1
    assert node.total("149", OTHER_GPU) == 2


def test_sxids_that_were_not_fatal_are_counted_apart(node: Node) -> None:
    """A code that never was has no series."""
    texts = ("Fatal, Link 30", "Non-fatal, Link 30", "Non-fatal")
    node.take(*(line(number, "12020", device=SWITCH, kind="sxid", text=text) for number, text in enumerate(texts)))

    counts = ("events", "nonfatal_events", "fatal_events")
    assert [node.value(f"nvswitch_sxid_{one}_total", SWITCH, "12020") for one in counts] == [3, 2, 1]
    assert node.value("nvswitch_sxid_nonfatal_events_total", SWITCH, "20034") is None


MOST_LINES = 50
"""Of events that come at once, and are logged one by one."""


def test_recent_events_are_told_until_their_window_is_over(node: Node) -> None:
    """A series of them is there only while there are some, also of a code that has never come before."""
    assert node.recent() == {}

    node.told(line(1), line(2), line(3, "31"), line(4, "12020", device=SWITCH, kind="sxid"))
    expected = {("gpu_xid_events", "79"): 2, ("gpu_xid_events", "31"): 1,
                ("nvswitch_sxid_events", "12020"): 1}  # fmt: skip
    assert node.recent() == expected

    node.feed("kernel_log", seconds=299.0)
    assert node.recent() == expected
    node.feed("kernel_log", seconds=1.0)
    assert node.recent() == {}
    assert node.total() == 2


LINKS_READ = ("nvml_nvlink", 0.0)


@pytest.mark.parametrize(
    ("event", "runs", "shown"),
    [
        pytest.param("74", [("kernel_log", 4.0)], False, id="the links were not read since"),
        pytest.param("74", [("kernel_log", 5.0)], True, id="they are not read any more"),
        pytest.param("74", [LINKS_READ], True, id="they were read after it"),
        pytest.param("20034", [("kernel_log", 4.0)], False, id="the error of an NVSwitch at a link"),
        pytest.param("20034", [LINKS_READ], True, id="so, and the links were read"),
        pytest.param("79", [], True, id="another Xid"),
        pytest.param("12020", [], True, id="another SXid"),
    ],
)
def test_an_error_of_a_link_is_recent_once_the_links_were_read_after_it(
    node: Node, event: str, runs: Sequence[tuple[str, float]], shown: bool
) -> None:
    """A scrape that shows the error has the link that is down as well, whichever process is quicker. Total and recent
    events rise together."""
    node.feed("nvml_nvlink")
    node.clock.now += 0.1
    is_switch = len(event) == 5
    metric, labels = ("nvswitch_sxid_events", (SWITCH,)) if is_switch else ("gpu_xid_events", (INDEX[GPU], GPU))
    node.told(line(1, event, device=SWITCH, kind="sxid") if is_switch else line(1, event))
    for collector, seconds in runs:
        node.feed(collector, seconds=seconds)

    assert (node.value(f"{metric}_total", *labels, event) or 0) == int(shown)
    assert node.value(f"{metric}_recent", *labels, event) == (1 if shown else None)


@pytest.mark.parametrize("looks", [False, True], ids=["", "the rules are evaluated before"])
@pytest.mark.parametrize("is_killed", [False, True], ids=["", "the daemon is killed before"])
@pytest.mark.parametrize(("code", "found"), [("74", "xid_fabric"), ("145", "xid_nonfatal"), ("79", "xid_fabric")])
def test_an_error_that_waits_for_the_links_is_a_finding_after_them(
    node: Node, code: str, found: str, looks: bool, is_killed: bool
) -> None:
    """With what came after it; a daemon that is started again reads the same lines from the kernel log."""
    node.feed("nvml_nvlink")
    node.engine.look()
    node.clock.now += 0.1
    told = (line(1, code), line(2, "31"))
    node.told(*told)
    if looks:
        node.engine.look()
    if is_killed:
        node.again()
        node.told(*told)
    for seconds in (0.5, 10.0, 10.0):
        node.feed("nvml_nvlink", seconds=seconds)
        node.engine.look()

    assert {one.code for one in node.engine.verdict.findings} >= {found}
    assert (node.total(code), node.total("31")) == (1, 1)


def test_where_the_links_are_not_read_no_error_waits_for_them(node: Node) -> None:
    """As on a node without NVLink, and during maintenance."""
    node.told(line(1, "74"))
    assert node.recent() == {("gpu_xid_events", "74"): 1}
    node.feed("nvml_nvlink")
    node.pause()
    node.told(line(2, "74"))
    assert node.recent() == {("gpu_xid_events", "74"): 2}


def test_events_from_before_a_restart_are_not_recent(node: Node) -> None:
    """What the state directory holds is known; what the log says since then is new."""
    node.told(line(1))
    node.save()
    node.restart()
    node.told(line(1), line(2, "74"))

    assert node.recent() == {("gpu_xid_events", "74"): 1}


def test_an_event_is_counted_and_logged_with_meaning_and_advice(node: Node) -> None:
    """One line for each, which an operator can act on; a known event is logged once."""
    text = "NETIR_LINK_EVT Fatal XC0 i0 Link 09 (0x025525c6 0x0)"
    (said,) = node.told(line(1, "149", at=1, device=OTHER_GPU, text=text))

    assert node.total("149", OTHER_GPU) == 1
    assert said["event"] == "hardware event"
    assert said["log_level"] == "warning"
    assert (said["code"], said["device"], said["component"], said["link"]) == ("149", OTHER_GPU, "nvlink", 9)
    assert said["happened"] == "2023-11-15T01:00:01.000+00:00"
    assert "drain the node" in said["advice"]
    assert node.told(line(1, "149", at=1, device=OTHER_GPU, text=text)) == []


def test_an_event_of_which_nothing_is_known_is_logged_all_the_same(node: Node) -> None:
    """Its number and text are all there is."""
    (said,) = node.told(line(1, "9999", text="something new"))

    assert (said["code"], said["text"], "advice" in said) == ("9999", "something new", False)


def test_noise_of_a_job_is_no_warning(node: Node) -> None:
    """An exception of a program is information."""
    assert [line["log_level"] for line in node.told(line(1, "13"))] == ["info"]


def test_what_the_driver_calls_fatal_is_a_warning(node: Node) -> None:
    """Even under a number that is harmless as a rule."""
    texts = ("Non-fatal, Link 03 request", "Fatal, Link 03 request")
    lines = node.told(
        *(line(number, "22013", device=SWITCH, kind="sxid", text=text) for number, text in enumerate(texts, start=1)),
    )

    assert [(line["severity"], line["log_level"]) for line in lines] == [("info", "info"), ("info", "warning")]


def test_a_log_full_of_old_events_does_not_flood_ours(node: Node) -> None:
    """The latest are told, the rest is summed up."""
    lines = node.told(*(line(number) for number in range(MOST_LINES + 7)))

    assert len(lines) == MOST_LINES + 1
    assert lines[-1]["count"] == 7


def test_a_lost_gpu_keeps_its_index(node: Node) -> None:
    """The inventory knows it though the driver does not list it any more."""
    node.feed("nvml_identity", collected({}, Absence(GPU, "lost", "GPU is lost")))
    node.told(line(1))

    assert node.total() == 1


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


@in_one_pass(
    "code, component", [(38, "driver"), (39, "application"), (42, "application"), (67, "gpu"), (73, "application")]
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
    all_meanings += [meaning for name in MESSAGES if (meaning := meaning_of(line(1, name, kind="message"))) is not None]

    assert len(all_meanings) == len(meanings("xid")) + len(meanings("sxid")) + len(MESSAGES)
    for meaning in all_meanings:
        assert meaning.meaning.endswith(".")
        assert meaning.advice.endswith(".")
        assert not meaning.name.endswith(".")


HOUR = 3600.0
KINDS: list[tuple[str, str, str, str, str, str]] = [
    ("xid", GPU, "79", "", "gpu_xid_events", "xid_fabric"),
    ("xid", GPU, "119", "", "gpu_xid_events", "xid_gpu"),
    ("xid", OTHER_GPU, "149", NONFATAL_LINE, "gpu_xid_nonfatal_events", "xid_nonfatal"),
    ("xid", GPU, "199", "Fatal", "gpu_xid_fatal_events", "xid_fatal"),
    ("sxid", SWITCH, "20034", "Fatal, Link 30", "nvswitch_sxid_events", "sxid_fatal"),
    ("sxid", OTHER_SWITCH, "99999", "Fatal, Link 30", "nvswitch_sxid_fatal_events", "sxid_fatal"),
    ("sxid", SWITCH, "22003", "Non-fatal, Link 30", "nvswitch_sxid_nonfatal_events", "sxid_warning"),
    ("message", OTHER_GPU, "fallen_off_bus", "", "kernel_log_gpu_messages", "xid_fabric"),
    ("adapter", STRANGER, "firmware_fatal", "", "adapter_events", "adapter_failed"),
]
"""Kind, device, number and text of an event; the counter that its alert reads, and its finding."""


@pytest.mark.parametrize("is_judged", [False, True], ids=["before the first evaluation", "after it"])
@pytest.mark.parametrize(("age", "is_recent"), [(HOUR - 1.0, True), (HOUR, False)])
def test_alert_and_finding_take_the_same_events_of_before_the_first_reading(
    node: Node, age: float, is_recent: bool, is_judged: bool
) -> None:
    """They take those of the last hour and no older one; all are counted, and after a restart none is new."""
    at = float(is_judged) - age
    events = [
        line(number, code, at, device, kind=kind, text=text)
        for number, (kind, device, code, text, *_) in enumerate(KINDS)
    ]

    def judged() -> tuple[set[tuple[str, str, str]], dict[tuple[str, str], float | str]]:
        for _ in range(2):  # some open 10 s after they were seen first
            node.engine.look()
            node.clock.now += 10.0
        recent = {
            (metric, labels[-2], labels[-1])
            for *_, metric, _ in KINDS
            for labels in node.series(f"{metric}_recent")
        }  # fmt: skip
        codes = {code for *_, code in KINDS}
        found = [one.match for one in node.engine.verdict.register.open_incidents() if one.code in codes]
        return recent, {(one.code, one.component.key): one.evidence[0].value for one in found}

    if is_judged:
        node.engine.look()
        node.clock.now += 1.0
    node.take(*events)
    recent, found = judged()
    told = {(metric, device, code) for _, device, code, _, metric, _ in KINDS}
    assert recent & told == (told if is_recent else set())
    assert is_recent or not recent
    assert found == ({(code, device): 1.0 for _, device, _, _, _, code in KINDS} if is_recent else {})
    totals = [node.series(f"{metric}_total") for *_, metric, _ in KINDS]
    assert [{labels[-2:]: count for labels, count in total.items()}[device, code]
            for total, (_, device, code, *_) in zip(totals, KINDS, strict=True)] == [1] * len(KINDS)  # fmt: skip

    node.again()
    node.take(*events)
    assert judged() == (set(), found)


@pytest.mark.parametrize(
    ("metric", "labels"), [("pcie_aer_errors", (GPU, "gpu", "fatal")), ("pcie_fatal_errors", ("0", GPU))]
)
def test_alert_and_finding_take_the_same_fatal_pcie_errors(node: Node, metric: str, labels: tuple[str, ...]) -> None:
    """Nothing says when that came which the first reading shows; what comes then is news, also over a restart."""

    def told(total: int) -> Value:
        collector = "pci_aer" if metric == "pcie_aer_errors" else "nvml_pcie"
        node.feed(collector, {GPU: {(f"commwatch_{metric}_total", labels): total}}, seconds=10.0)
        return node.value(f"{metric}_recent", *labels)

    def found() -> set[float | str]:
        node.engine.look()
        open_ones = [one.match for one in node.engine.verdict.register.open_incidents() if one.code == "pcie_fatal"]
        return {fact.value for one in open_ones for fact in one.evidence}

    assert (told(3), told(4), found()) == (None, 1, {1.0})
    node.again()
    assert (told(4), found()) == (None, {1.0})
    node.again()
    assert (told(6), found()) == (2, {3.0})
