"""Whether the driver can be used: said once it has lasted, only where there are GPUs for it, and taken back at once."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import pytest

from commwatch.config.settings import Config, Inventory
from commwatch.node.run import Collected
from commwatch.readings import Absence, Reason, SourceUnavailable
from commwatch.sources.gpu_bus import bound_devices, gpus_to_list
from commwatch.sources.presence import NvidiaGpus, nvidia_gpus
from commwatch_exporters.snapshot import Value
from support.core import collected
from support.fed_daemon import FedDaemon

LASTS_SECONDS = 20.0
SILENT_SECONDS = 35.0
LOADS_SECONDS = 60.0
MISMATCH: Final = "library_mismatch"
NOT_LOADED: Final = "no_driver"


GPU = "0000:17:00.0"


class Watched(FedDaemon):
    """A driver with a GPU on the bus, whose collectors run when they are told to."""

    def __init__(self, folder: Path, patched: pytest.MonkeyPatch) -> None:
        self.bus = put(folder / "sysfs", GPU, "nvidia")
        super().__init__(folder, patched)

    def fails(self, reason: Reason, after: float = 0.0) -> dict[str, Value]:
        self.feed("nvml_nvlink", SourceUnavailable(reason, "x"), after)
        return self.said()

    def answers(self, *gpus: str, absences: tuple[Absence, ...] = (), after: float = 0.0) -> dict[str, Value]:
        blocks = {device: self.block({("commwatch_gpu_busy", ("0", device)): 1}) for device in ("", *gpus)}
        self.feed("nvml_identity", collected(blocks, *absences), after)
        return self.said()

    def gives(self, *absences: tuple[str, Reason], value: Value = None, after: float = 0.0) -> dict[str, Value]:
        """A run of the collector that shows whether GPUs are read; each has this value."""
        blocks = {device: self.block({("commwatch_gpu_busy", ("0", device)): value}) for device, _ in absences}
        gaps = [Absence(device, reason, "x") for device, reason in absences]
        self.feed("nvml_gpu", Collected(blocks if any(blocks) else {}, gaps, 0.0), after)
        return self.said()

    def said(self) -> dict[str, Value]:
        self.engine.expire()
        return {labels[0]: flag for labels, flag in self.series("driver_unusable").items()}


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """One that was read."""
    watched = Watched(tmp_path, monkeypatch)
    assert watched.answers(GPU) == {"none": 0}
    return watched


def test_a_driver_that_fails_is_said_to_be_unusable_once_that_has_lasted(driver: Watched) -> None:
    """Not just before, so that one that is loaded again is no fault; and at once when it can be used."""
    driver.fails(MISMATCH)
    assert driver.fails(MISMATCH, LASTS_SECONDS - 0.1) == {"none": 0}

    assert driver.fails(MISMATCH, 0.1) == {MISMATCH: 1}

    assert driver.answers(GPU, after=1.0) == {"none": 0}
    driver.fails(MISMATCH)
    assert driver.fails(MISMATCH, LASTS_SECONDS - 0.1) == {"none": 0}


def test_the_reason_is_that_of_now(driver: Watched) -> None:
    """The session ends first, and only the next one says why; an error without a reason of its own is unreadable."""
    driver.fails(NOT_LOADED)

    assert driver.fails(MISMATCH, LASTS_SECONDS) == {MISMATCH: 1}
    assert driver.fails("not_ready", LOADS_SECONDS - LASTS_SECONDS) == {"unreadable": 1}


@pytest.mark.parametrize(("reason", "seconds"), [(NOT_LOADED, LOADS_SECONDS), (MISMATCH, LASTS_SECONDS)])
def test_a_driver_that_was_not_read_yet_may_still_be_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: Reason, seconds: float
) -> None:
    """The daemon starts with the node; any other reason needs no time to load."""
    young = Watched(tmp_path, monkeypatch)
    young.fails(reason)
    assert young.fails(reason, seconds - 0.1) == {}
    assert young.fails(reason, 0.1) == {reason: 1}


def test_a_driver_that_lists_no_gpu_cannot_be_used(driver: Watched) -> None:
    """The other collectors read nothing then and fail with nothing; a GPU that fails is listed."""
    driver.answers()
    driver.feed("nvml_nvlink", seconds=LASTS_SECONDS)
    assert driver.said() == {"no_gpu": 1}

    assert driver.answers(absences=(Absence("index:0", "unreadable", "x"),)) == {"none": 0}


def test_a_session_that_opens_and_reads_nothing_does_not_begin_the_wait_again(driver: Watched) -> None:
    """Until its identity is read, or anything of a GPU."""
    driver.fails(NOT_LOADED)
    driver.feed("nvml_nvlink", seconds=5.0)

    driver.answers(after=LASTS_SECONDS - 5.0)

    assert driver.said() == {"no_gpu": 1}


def test_a_worker_that_fails_says_nothing_of_the_driver(driver: Watched) -> None:
    """A missed deadline, with or without a device, is neither a fault of the driver nor its end."""
    hung = collected({}, Absence("", "deadline", "x"))
    driver.feed("nvml_identity", hung)
    assert driver.said() == {"none": 0}

    driver.fails(MISMATCH)
    driver.fails(MISMATCH, LASTS_SECONDS)
    driver.feed("nvml_identity", hung)
    assert driver.said() == {MISMATCH: 1}


FAILS: Final = ((GPU, "unreadable"), ("0000:18:00.0", "not_ready"))


@pytest.mark.parametrize(
    ("absences", "reason"),
    [
        (FAILS, "calls_fail"),
        ((("", "deadline"),), "no_answer"),
        ((("", "crashed"),), "no_answer"),
        (((GPU, "no_permission"), ("0000:18:00.0", "no_permission")), "no_permission"),
    ],
)
def test_a_driver_that_opens_and_gives_nothing_cannot_be_used(
    driver: Watched, absences: tuple[tuple[str, Reason], ...], reason: str
) -> None:
    """Once it has lasted, not just before, whatever other collectors keep of the GPUs; a reading takes it back."""
    assert driver.gives(*absences) == {"none": 0}
    driver.answers(GPU)
    assert driver.gives(*absences, after=SILENT_SECONDS - 0.1) == {"none": 0}

    assert driver.gives(*absences, after=0.1) == {reason: 1}

    assert driver.gives((GPU, "unreadable"), value=1, after=1.0) == {"none": 0}


@pytest.mark.parametrize(
    "absences",
    [
        ((GPU, "lost"), ("0000:18:00.0", "unreadable")),
        ((GPU, "deadline"),),
        (("", "starved"),),
    ],
)
def test_gpus_with_a_state_and_a_starved_node_are_no_fault_of_the_driver(
    driver: Watched, absences: tuple[tuple[str, Reason], ...]
) -> None:
    """A GPU that is lost or hangs is one by itself, and what starved is not judged."""
    driver.gives(*absences)

    assert driver.gives(*absences, after=10 * SILENT_SECONDS) != {"calls_fail": 1}
    assert driver.said().get("no_answer") is None


def test_time_in_which_the_node_starved_does_not_count(driver: Watched) -> None:
    """The wait begins again with the last run that starved."""
    driver.gives(*FAILS)
    driver.gives(("", "starved"), after=SILENT_SECONDS)

    assert driver.gives(*FAILS, after=SILENT_SECONDS - 0.1) == {"none": 0}
    assert driver.gives(*FAILS, after=0.1) == {"calls_fail": 1}


def test_where_no_driver_is_wanted_or_it_was_let_go_nothing_is_said(driver: Watched) -> None:
    """And what was said ends; it also ends when no collector runs any more."""
    driver.fails(MISMATCH)
    driver.fails(MISMATCH, LASTS_SECONDS)
    shutil.rmtree(driver.bus)
    assert driver.fails(MISMATCH, 60.0) == {}

    driver.answers(GPU)
    driver.pause()
    assert driver.said() == {}

    driver.resume()
    driver.answers(GPU)
    driver.clock.now += 190.0
    assert driver.said() == {}


def put(sysfs: Path, address: str, driver: str = "", pci_class: str = "0x030200", vendor: str = "0x10de") -> Path:
    """A PCI device as sysfs shows it."""
    folder = sysfs / "bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "class").write_text(f"{pci_class}\n")
    (folder / "vendor").write_text(f"{vendor}\n")
    if driver:
        os.symlink(f"../../../../bus/pci/drivers/{driver}", folder / "driver")
    return folder


@pytest.mark.parametrize(
    ("driver", "pci_class", "vendor", "found"),
    [
        ("", "0x030200", "0x10de", (1, 0)),
        ("nvidia", "0x030000", "0x10de", (1, 0)),
        ("vfio-pci", "0x030200", "0x10de", (0, 1)),
        ("nouveau", "0x030200", "0x10de", (1, 0)),
        ("nouveau", "0x030000", "0x10de", (0, 0)),
        ("", "0x030000", "0x1002", (0, 0)),
        ("snd_hda_intel", "0x040300", "0x10de", (0, 0)),
    ],
)
def test_gpus_are_told_apart_by_who_should_serve_them(
    driver: str, pci_class: str, vendor: str, found: tuple[int, int], tmp_path: Path
) -> None:
    """Ours are those of NVIDIA's driver, bound or not; vfio-pci holds one for a virtual machine."""
    put(tmp_path, GPU, driver, pci_class, vendor)

    assert nvidia_gpus(tmp_path) == NvidiaGpus(*found)


def test_virtual_functions_and_a_node_without_a_bus_have_no_gpus(tmp_path: Path) -> None:
    """The physical function has the driver."""
    assert nvidia_gpus(tmp_path) == NvidiaGpus(0, 0)
    (put(tmp_path, "0000:17:00.4") / "physfn").mkdir()
    assert nvidia_gpus(tmp_path) == NvidiaGpus(0, 0)


@pytest.mark.parametrize("error", [PermissionError, OSError])
def test_a_bus_that_cannot_be_listed_shows_no_gpus(
    error: type[OSError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails neither the daemon nor the reader of the driver, whose GPUs are read all the same."""

    def refuse(path: str | Path) -> list[str]:
        raise error(path)

    put(tmp_path, GPU, "nvidia")
    monkeypatch.setattr(os, "listdir", refuse)
    assert nvidia_gpus(tmp_path) == NvidiaGpus(0, 0)
    assert gpus_to_list(tmp_path, tmp_path) == frozenset()


@pytest.mark.parametrize(
    ("bound", "expected", "wanted", "wanted_of_none"),
    [
        (["nvidia"], None, True, True),
        ([""], None, True, True),
        ([""], 0, False, False),
        (["vfio-pci"], None, False, False),
        (["vfio-pci"], 8, False, False),
        (["vfio-pci", ""], None, True, True),
        ([], None, False, False),
        ([], 8, True, False),
    ],
)
def test_a_driver_is_wanted_where_it_has_gpus_or_should_have(
    bound: list[str], expected: int | None, wanted: bool, wanted_of_none: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """GPUs for a virtual machine want none; that it lists no GPU is its fault only while there is one for it."""
    for place, driver in enumerate(bound):
        put(tmp_path / "sysfs", f"0000:1{place}:00.0", driver)
    config = Config(inventory=Inventory(expected={} if expected is None else {"gpu": expected}))
    bus = FedDaemon(tmp_path, monkeypatch, config).engine.pipeline.bus

    assert tuple(map(bus.is_driver_wanted, ("no_driver", "no_gpu"))) == (wanted, wanted_of_none)


TWO: Final = (GPU, "0000:18:00.0")


@pytest.fixture
def bus(tmp_path: Path) -> Path:
    """Two GPUs bound to NVIDIA's driver, one that vfio-pci holds and one that none serves."""
    for address, driver in zip(
        (*TWO, "0000:19:00.0", "0000:1a:00.0"), ("nvidia", "nvidia", "vfio-pci", ""), strict=True
    ):
        put(tmp_path / "sys", address, driver)
    (tmp_path / "dev").mkdir()
    return tmp_path


def listed(bus: Path) -> frozenset[str]:
    return gpus_to_list(bus / "sys", bus / "proc", bus / "dev")


def test_the_driver_should_list_the_gpus_that_are_bound_to_it(bus: Path) -> None:
    """Not those of a virtual machine, and not those that no driver serves; device files of all change nothing."""
    assert listed(bus) == {*TWO}
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (bus / "dev" / name).touch()
    assert listed(bus) == {*TWO}


def test_the_folder_of_the_driver_names_what_is_bound_to_it(bus: Path) -> None:
    """NVSwitches too; its own files are no device, and without a driver nothing is bound."""
    assert bound_devices(bus / "sys") == frozenset()
    for name in (*TWO, "0000:c1:00.0", "new_id", "unbind"):
        (bus / "sys/bus/pci/drivers/nvidia" / name).mkdir(parents=True)

    assert bound_devices(bus / "sys") == {*TWO, "0000:c1:00.0"}


def test_of_a_container_that_was_given_a_part_of_the_gpus_nothing_is_known(bus: Path) -> None:
    """It has fewer device files than GPUs are bound."""
    (bus / "dev/nvidia1").touch()

    assert listed(bus) == frozenset()


def test_gpus_that_are_hidden_or_excluded_on_purpose_need_not_be_listed(bus: Path) -> None:
    """The container tools mount the folders of the GPUs that they hand on; the module's parameter names others."""
    (bus / "proc/driver/nvidia/gpus" / TWO[1]).mkdir(parents=True)
    assert listed(bus) == {TWO[1]}

    parameters = bus / "proc/driver/nvidia/params"
    parameters.write_text('EnableMSI: 1\nExcludedGpus: ""\n')
    assert listed(bus) == {TWO[1]}
    parameters.write_text('EnableMSI: 1\nExcludedGpus: "GPU-5d4e91a8"\n')
    assert listed(bus) == frozenset()
