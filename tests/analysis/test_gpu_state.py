"""The state of GPUs, from what was read and what was not."""

from __future__ import annotations

import pytest

from commwatch.node.gpu_state import (
    LOST,
    MISSING,
    NOT_ANSWERING,
    NOT_LISTED,
    OK,
    RESET_REQUIRED,
    failing_gpus,
    gpu_states,
    not_working,
    state_block,
)
from commwatch.node.inventory_state import GpuRecord, Learned
from commwatch.node.observation import Observation, SeenGpu
from commwatch.readings import Absence, Reason
from support.pages import lines_of
from support.passes import in_one_pass

SLOTS = ("0000:17:00.0", "0000:3d:00.0", "0000:60:00.0")
NAMES = [(str(number), slot) for number, slot in enumerate(SLOTS)]


def known(number: int, uuid: str = "", *, is_replaced: bool = False, name: str = "") -> dict[str, GpuRecord]:
    """An expected GPU."""
    record = GpuRecord(number, SLOTS[number], name, is_replaced=is_replaced, presence=Learned(1.0))
    return {uuid or f"GPU-{number}": record}


KNOWN = known(0) | known(1) | known(2)


def seen(*numbers: int) -> Observation:
    return Observation(gpus=tuple(SeenGpu(f"GPU-{number}", number, SLOTS[number]) for number in numbers))


@in_one_pass(
    "reason, state",
    [
        ("lost", LOST),
        ("reset_required", RESET_REQUIRED),
        ("deadline", NOT_ANSWERING),
        ("crashed", NOT_ANSWERING),
        ("not_found", MISSING),
        ("not_listed", NOT_LISTED),
    ],
)
@in_one_pass("is_listed", [True, False])
def test_the_reason_of_an_absence_is_the_state(reason: Reason, state: int, is_listed: bool) -> None:
    """What the driver says of a GPU is its state, whether its identity could still be read or not."""
    observation = seen(0, 1, 2) if is_listed else seen(0, 2)

    states = gpu_states(KNOWN, observation, [Absence(SLOTS[1], reason, "detail")], ())

    assert states == {NAMES[0]: OK, NAMES[1]: state, NAMES[2]: OK}
    assert not_working(states) == {SLOTS[1]}


@in_one_pass("reason", ["not_ready", "unreadable", "no_permission"])
def test_other_reasons_say_nothing_of_the_gpu(reason: Reason) -> None:
    states = gpu_states(KNOWN, seen(0, 1, 2), [Absence(SLOTS[1], reason, "detail")], ())

    assert states[NAMES[1]] == OK


def test_a_gpu_that_was_never_read_is_not_listed_by_its_address() -> None:
    """From the first boot on, when nothing is known of it; a known one keeps the index that it had last."""
    absence = Absence(SLOTS[1], "not_listed", "")

    assert gpu_states({}, seen(0, 2), [absence], ()) == {NAMES[0]: OK, NAMES[2]: OK, ("", SLOTS[1]): NOT_LISTED}
    assert gpu_states(KNOWN, seen(0, 2), [absence], ())[NAMES[1]] == NOT_LISTED


def test_the_most_severe_evidence_counts() -> None:
    """A GPU that is lost and on which a worker is stuck is lost."""
    absences = [Absence(SLOTS[1], "deadline", ""), Absence(SLOTS[1], "lost", ""), Absence("index:1", "not_found", "")]

    assert gpu_states(KNOWN, seen(0, 2), absences, [SLOTS[1]])[NAMES[1]] == LOST


@pytest.mark.parametrize(
    ("observation", "device", "labels"),
    [
        (seen(0, 1, 2), "index:1", NAMES[1]),
        (seen(0, 2), "index:1", NAMES[1]),
        (seen(0, 2), "index:7", NAMES[1]),
        (seen(0), "index:7", ("7", "")),
        (Observation(), "index:1", NAMES[1]),
        (seen(0, 1, 2), "0000:99:00.0", ("", "0000:99:00.0")),
    ],
    ids=["listed", "its last index", "the only one away", "unknown", "no list", "unknown slot"],
)
def test_a_device_is_named_as_well_as_it_is_known(
    observation: Observation, device: str, labels: tuple[str, str]
) -> None:
    """An index stands for the GPU that has it, had it last, or is the only one away; else it stands for itself."""
    assert gpu_states(KNOWN, observation, [Absence(device, "lost", "")], ())[labels] == LOST


def test_a_replaced_gpu_is_missing_beside_the_new_one() -> None:
    """The new card in the slot is ok; the old one is missing without an index, at once and later."""
    new = Observation(gpus=(SeenGpu("GPU-new", 1, SLOTS[1]),))
    expected = {NAMES[1]: OK, ("", SLOTS[1]): MISSING}

    assert gpu_states(known(1), new, (), ()) == expected
    states = gpu_states(known(1, is_replaced=True) | known(1, uuid="GPU-new"), new, (), ())
    assert states == expected
    assert not_working(states) == frozenset()


def test_a_gpu_that_moved_to_another_slot_is_not_missing() -> None:
    """A card is known by its UUID, wherever it is."""
    moved = Observation(gpus=(SeenGpu("GPU-1", 0, SLOTS[2]),))

    assert gpu_states(known(1), moved, (), ()) == {("0", SLOTS[2]): OK}


@in_one_pass(
    "devices, listed, on_bus, labels",
    [
        (["index:1"], (0, 2), SLOTS, [("1", SLOTS[1])]),
        (["index:0"], (), SLOTS[:1], [("0", SLOTS[0])]),
        (["index:1"], (0, 2), SLOTS[::2], [("1", "")]),  # the bus shows none
        (["index:1"], (0,), SLOTS, [("1", "")]),  # one of two
        (["index:1", SLOTS[2]], (0,), SLOTS, [("1", SLOTS[1]), ("", SLOTS[2])]),  # the other one goes by its address
        (["index:1", "index:2"], (0,), SLOTS, [("1", ""), ("2", "")]),
        (["index:1", "index:2"], (0,), SLOTS[:2], [("1", ""), ("2", "")]),  # one address cannot be both
    ],
)
@in_one_pass("is_stuck", [True, False])
def test_the_bus_tells_the_address_of_a_gpu_that_was_never_read(
    devices: list[str], listed: tuple[int, ...], on_bus: tuple[str, ...], labels: list[tuple[str, str]], is_stuck: bool
) -> None:
    """Where one alone is bound to the driver and not listed, whether it is lost or hangs; else none is made up."""
    absences = [] if is_stuck else [Absence(device, "lost", "") for device in devices]

    states = gpu_states({}, seen(*listed), absences, devices if is_stuck else (), on_bus)

    assert {one for one, state in states.items() if state} == {*labels}


@pytest.mark.parametrize(("reason", "state"), [("lost", LOST), ("unreadable", None)])
def test_a_card_that_is_not_on_the_bus_is_missing_whatever_fails_under_its_index(
    reason: Reason, state: int | None
) -> None:
    """The first of three cards is gone, so that the second one, which fails, is GPU 0 now, and the third one GPU 1."""
    left = Observation(gpus=(SeenGpu("GPU-2", 1, SLOTS[2]),))

    states = gpu_states(KNOWN, left, [Absence("index:0", reason, "")], (), SLOTS[1:])

    by_slot = {pci_bus_id: one for (_, pci_bus_id), one in states.items()}
    assert by_slot == {SLOTS[0]: MISSING, SLOTS[2]: OK} | ({} if state is None else {SLOTS[1]: state})


def test_a_gpu_without_an_address_has_those_that_it_may_have() -> None:
    """Of the bus, without the GPUs that are known; one whose address is known has none."""
    states = gpu_states({}, seen(0), [Absence("index:1", "lost", "")], (), SLOTS)
    possible = ("commwatch_gpu_possible_address", ("1", ""))

    block = state_block(states, {}, seen(0), 5.0, on_bus=SLOTS)

    found = [labels for metric, labels in block.layout.series if metric == possible[0]]
    assert found == [(*possible[1], SLOTS[1]), (*possible[1], SLOTS[2])]
    named = state_block({NAMES[0]: OK, NAMES[1]: LOST}, {}, seen(0), 5.0, on_bus=SLOTS)
    assert lines_of(named, possible[0]) == ""


def test_a_gpu_that_cannot_say_who_it_is_keeps_its_identity() -> None:
    """One that is lost is named as it was; one that answers names itself, and one that was replaced has none."""
    named = known(1, name="H100")
    named["GPU-1"].serial, named["GPU-1"].architecture = "S1", "Hopper"

    lost = state_block({NAMES[0]: OK, NAMES[1]: LOST}, known(0) | named, seen(0), 5.0)
    here = state_block({NAMES[0]: OK, NAMES[1]: LOST}, known(0) | named, seen(0, 1), 5.0)
    named["GPU-1"].is_replaced = True
    replaced = state_block({NAMES[0]: OK, ("", SLOTS[1]): MISSING}, named, seen(0), 5.0)

    assert lost.get("commwatch_gpu_info", *NAMES[1], "GPU-1", "S1", "H100", "Hopper") == 1
    assert [lines_of(block, "commwatch_gpu_info") for block in (here, replaced)] == ["", ""]


@pytest.mark.parametrize("device", [SLOTS[1], "index:1"])
def test_a_gpu_that_fails_and_is_not_listed_is_not_missing(device: str) -> None:
    """It has no state; who it is stays, so that it can be named. Without such an answer of the driver it is missing."""
    absences = [Absence(device, "unreadable", "Unknown Error")]
    states = gpu_states(KNOWN, seen(0, 2), absences, ())
    failing = failing_gpus(KNOWN, seen(0, 2), absences)

    assert states == {NAMES[0]: OK, NAMES[2]: OK}
    assert failing == {SLOTS[1]}
    infos = [labels for metric, labels in state_block(states, KNOWN, seen(0, 2), 0.0, failing).layout.series
             if metric == "commwatch_gpu_info"]  # fmt: skip
    assert [labels[:2] for labels in infos] == [NAMES[1]]
    assert gpu_states(KNOWN, seen(0, 2), (), ())[NAMES[1]] == MISSING


def test_an_index_is_not_taken_for_a_gpu_that_fails_by_its_own_address() -> None:
    """The lost one was never known."""
    absences = [Absence(SLOTS[1], "unreadable", ""), Absence("index:7", "lost", "")]

    assert gpu_states(KNOWN, seen(0, 2), absences, ()) == {NAMES[0]: OK, NAMES[2]: OK, ("7", ""): LOST}
