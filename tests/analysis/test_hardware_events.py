"""Hardware events are counted once, whoever tells them, over restarts of every part."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.node.hardware_events import (
    FABRIC_SXIDS,
    FABRIC_XIDS,
    MOST_CODES,
    MOST_STRANGERS,
    MOST_UNPAIRED,
    NVLINK5_XIDS,
    PAIRING_SECONDS,
    HardwareEvents,
    HardwareEventsState,
)
from commwatch.readings import HardwareEvent

GPU, OTHER_GPU, SWITCH = "0000:17:00.0", "0000:18:00.0", "0000:06:00.0"
NOW = 1_700_000_000.0


def driver(code: str = "79", at: float = 0.0, device: str = GPU) -> HardwareEvent:
    return HardwareEvent("xid", device, code, "nvml", NOW + at)


def line(
    sequence: int, code: str = "79", at: float = 0.0, device: str = GPU, boot: str = "one", kind: str = "xid"
) -> HardwareEvent:
    return HardwareEvent(kind, device, code, "kernel_log", NOW + at, "", boot, sequence)  # type: ignore[arg-type]  # a kind


@pytest.fixture
def events() -> HardwareEvents:
    """Two GPUs, one of them with NVLink 5, and an NVSwitch."""
    made = HardwareEvents(HardwareEventsState())
    made.know({GPU: "0", OTHER_GPU: "1"}, [OTHER_GPU], [SWITCH])
    return made


def total(events: HardwareEvents, code: str = "79", device: str = GPU) -> int | None:
    return events.state.xids.get(device, {}).get(code)


def restarted(events: HardwareEvents) -> HardwareEvents:
    """As after a restart of the daemon: what was saved is read back."""
    return HardwareEvents(msgspec.json.decode(msgspec.json.encode(events.state), type=HardwareEventsState))


@pytest.mark.parametrize("order", ["driver first", "log first"])
@pytest.mark.parametrize("apart", [0, PAIRING_SECONDS])
def test_both_origins_of_one_xid_count_once(events: HardwareEvents, order: str, apart: float) -> None:
    """In either order; only the first is announced."""
    told = [driver(at=apart), line(1)]
    announced = [one for event in (told if order == "driver first" else told[::-1]) for one in events.take([event])]

    assert total(events) == 1
    assert len(announced) == 1


def test_two_xids_far_apart_are_two(events: HardwareEvents) -> None:
    """Past the window they do not belong together."""
    events.take([driver(), line(1, at=PAIRING_SECONDS + 1)])

    assert total(events) == 2


@pytest.mark.parametrize("other", [{"code": "74"}, {"device": OTHER_GPU}])
def test_another_code_or_gpu_is_another_event(events: HardwareEvents, other: dict[str, str]) -> None:
    """Only the same Xid of the same GPU is one event."""
    events.take([driver(), line(1, **other)])  # type: ignore[arg-type]  # two keywords that are texts

    assert sum(sum(totals.values()) for totals in events.state.xids.values()) == 2


def test_repeated_lines_are_events_of_their_own(events: HardwareEvents) -> None:
    """Three lines and two events of the driver are three; three events and one line are three."""
    events.take([line(1), line(2), line(3), driver(), driver()])
    assert total(events) == 3

    events.take([driver("31"), driver("31"), driver("31"), line(4, "31")])
    assert total(events, "31") == 3


def test_a_log_that_is_read_again_counts_nothing_twice(events: HardwareEvents) -> None:
    """A new worker begins with the oldest record; what is new is counted."""
    log = [line(1), line(5, "13")]
    events.take(log)

    announced = events.take([*log, line(9, "31")])

    assert [event.code for event in announced] == ["31"]
    assert (total(events), total(events, "13"), total(events, "31")) == (1, 1, 1)


def test_a_restart_counts_nothing_twice_and_loses_nothing(events: HardwareEvents) -> None:
    """What came while nothing ran is counted, what was counted before is not."""
    events.take([line(1), line(2)])

    events = restarted(events)
    events.take([line(1), line(2), line(3)])

    assert total(events) == 3


def test_an_xid_of_the_driver_is_not_counted_again_after_a_restart(events: HardwareEvents) -> None:
    """Its line is read by the daemon that came after."""
    events.take([driver()])

    events = restarted(events)
    events.take([line(7)])

    assert total(events) == 1


def test_old_lines_do_not_make_the_wait_for_a_new_one_end(events: HardwareEvents) -> None:
    """A log read from its beginning passes old records before it comes to the line of the driver's event."""
    events.take([driver(at=1000)])
    events.take([line(1, at=-5000), line(2, at=-200), line(3, at=1001)])

    assert total(events) == 3


def test_another_boot_begins_anew_and_totals_go_on(events: HardwareEvents) -> None:
    """Numbers of records start again with a boot."""
    events.take([line(500)])
    events.take([line(3, at=900, boot="two")])
    events.take([line(3, at=900, boot="two")])

    assert total(events) == 2
    assert (events.state.boot, events.state.sequence) == ("two", 3)


def test_fabric_codes_are_there_before_the_first_event(events: HardwareEvents) -> None:
    """An increase needs a value before it; NVLink 5 has more codes."""
    block = events.block(5.0)

    assert {code: block.get("commwatch_gpu_xid_events_total", "0", GPU, code) for code in FABRIC_XIDS} == dict.fromkeys(
        FABRIC_XIDS, 0
    )
    assert block.get("commwatch_gpu_xid_events_total", "0", GPU, NVLINK5_XIDS[0]) is None
    assert block.get("commwatch_gpu_xid_events_total", "1", OTHER_GPU, NVLINK5_XIDS[0]) == 0
    assert [block.get("commwatch_nvswitch_sxid_events_total", SWITCH, code) for code in FABRIC_SXIDS] == [0] * len(
        FABRIC_SXIDS
    )
    assert block.get("commwatch_gpu_last_xid_timestamp_seconds", "0", GPU) is None


def test_every_kind_has_its_metric(events: HardwareEvents) -> None:
    """Xids, SXids, lines without a number, and events of the driver without one."""
    events.take([
        line(1, "31", at=1.5), line(2, "20034", device=SWITCH, kind="sxid"),
        line(3, "fallen_off_bus", kind="message"), line(4, "nvlink_detection_failed", device="", kind="message"),
        HardwareEvent("message", GPU, "gpu_unavailable", "nvml", NOW),
    ])  # fmt: skip
    block = events.block(5.0)

    assert block.get("commwatch_gpu_xid_events_total", "0", GPU, "31") == 1
    assert block.get("commwatch_gpu_last_xid_timestamp_seconds", "0", GPU) == NOW + 1.5
    assert block.get("commwatch_nvswitch_sxid_events_total", SWITCH, "20034") == 1
    assert block.get("commwatch_kernel_log_gpu_messages_total", "0", GPU, "fallen_off_bus") == 1
    assert block.get("commwatch_kernel_log_gpu_messages_total", "", "", "nvlink_detection_failed") == 1
    assert block.get("commwatch_gpu_driver_events_total", "0", GPU, "gpu_unavailable") == 1


def test_a_gpu_without_an_index_keeps_its_address(events: HardwareEvents) -> None:
    """One that was lost before its index was known."""
    events.take([line(1, device="0000:99:00.0")])

    assert events.block(5.0).get("commwatch_gpu_xid_events_total", "", "0000:99:00.0", "79") == 1


def test_a_gpu_that_is_no_longer_expected_takes_its_zeros_along(events: HardwareEvents) -> None:
    """Totals that say something stay."""
    events.take([line(1, device=OTHER_GPU)])
    events.know({}, [], [])

    assert events.state.xids.keys() == {OTHER_GPU}
    assert events.state.sxids == {}


def test_the_layout_stays_while_no_series_comes(events: HardwareEvents) -> None:
    """A further event of a known code changes a number only."""
    first = events.block(1.0)
    events.take([line(1)])
    second = events.block(2.0)
    events.take([line(2)])

    assert second.layout is not first.layout  # the time of the last Xid is new
    assert events.block(3.0).layout is second.layout


def test_a_hostile_log_makes_few_series(events: HardwareEvents) -> None:
    """Codes and devices beyond a bound count as others."""
    codes = [line(number, str(number)) for number in range(10_000)]
    devices = [line(20_000 + number, "13", device=f"0000:{number:02x}:1f.0") for number in range(200)]
    events.take([*codes, *devices])

    assert len(events.state.xids[GPU]) == MOST_CODES + 1
    assert sum(events.state.xids[GPU].values()) == 10_000
    assert len(events.state.xids) == 2 + MOST_STRANGERS + 1
    assert events.state.xids[""]["13"] == 200 - MOST_STRANGERS
    assert len(events.state.unpaired) <= MOST_UNPAIRED


TOLD = st.lists(
    st.tuples(st.sampled_from(["both", "driver", "log"]), st.sampled_from(["79", "13"]), st.floats(0, 5)), max_size=30
)


@given(TOLD, st.randoms(use_true_random=False), st.integers(0, 30))
def test_in_whatever_order_the_origins_tell_it_the_count_is_right(
    happened: list[tuple[str, str, float]], chance: Random, restart_at: int
) -> None:
    """Events within one window: of each code as many as the origin that told more, the log read twice and a restart."""
    log = [line(number, code, at) for number, (who, code, at) in enumerate(happened) if who != "driver"]
    nvml = [driver(code, at) for who, code, at in happened if who != "log"]
    order = _interleaved(log, nvml, chance)
    events = HardwareEvents(HardwareEventsState())
    for number, event in enumerate(order):
        if number == restart_at:
            events = restarted(events)
        events.take([event])
    events.take(log)

    for code in ("79", "13"):
        expected = max(_count(log, code), _count(nvml, code))
        assert (total(events, code) or 0) == expected


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


@pytest.mark.parametrize("driver_first", [True, False])
def test_what_was_not_fatal_is_counted_by_its_line(events: HardwareEvents, driver_first: bool) -> None:
    """Also where the driver told the Xid before, without saying so; a line that is read again counts once."""
    told = HardwareEvent("xid", OTHER_GPU, "149", "kernel_log", NOW, NONFATAL_LINE, "one", 1)
    fatal = HardwareEvent("xid", OTHER_GPU, "149", "kernel_log", NOW + 1, FATAL_LINE, "one", 2)
    pair = [driver("149", device=OTHER_GPU), told]
    for event in (*(pair if driver_first else pair[::-1]), fatal, told):
        events.take([event])

    shown = restarted(events).block(0.0)
    assert shown.get("commwatch_gpu_xid_nonfatal_events_total", "", OTHER_GPU, "149") == 1
    assert total(events, "149", OTHER_GPU) == 2


def test_sxids_that_were_not_fatal_are_counted_apart(events: HardwareEvents) -> None:
    """A code that never was has no series."""
    for sequence, text in enumerate(("Fatal, Link 30", "Non-fatal, Link 30", "Non-fatal")):
        events.take([HardwareEvent("sxid", SWITCH, "12020", "kernel_log", NOW, text, "one", sequence)])

    shown = events.block(0.0)
    assert shown.get("commwatch_nvswitch_sxid_events_total", SWITCH, "12020") == 3
    assert shown.get("commwatch_nvswitch_sxid_nonfatal_events_total", SWITCH, "12020") == 2
    assert shown.get("commwatch_nvswitch_sxid_nonfatal_events_total", SWITCH, "20034") is None
