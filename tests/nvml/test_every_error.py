"""Every error of NVML for twelve minutes: what is shown, found and paged; docs/reference/nvml-errors.md has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import pynvml
import pytest

from commwatch.config.settings import Config, Duration, Inventory, NvmlSection, Sources
from commwatch.findings.codes import CODES
from commwatch.findings.finding import Finding
from commwatch.node.run import Collected
from commwatch.readings import SourceUnavailable
from commwatch.service.engine import Engine
from commwatch.sources.nvml import codes
from commwatch.sources.nvml.source import NvmlSource
from commwatch.workers.sources import SOURCES
from commwatch_exporters.state_words import GPU_STATES
from nvml.library import FakeGpu, Library, hopper
from support.fed_daemon import FedDaemon
from support.passes import in_one_pass

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "nvml-errors.md"
ERRORS: dict[str, int] = dict(
    sorted(
        (
            (name.removeprefix("NVML_ERROR_"), code)
            for name, code in vars(pynvml).items()
            if name.startswith("NVML_ERROR_")
        ),
        key=lambda error: error[1],
    )
)
"""All that the binding knows, by name."""
OF_A_GPU = {"INVALID_ARGUMENT", "NOT_FOUND", "GPU_IS_LOST", "RESET_REQUIRED", "GPU_NOT_FOUND"}
"""Answers about one GPU, whatever those about the others are."""
OF_THE_DRIVER = {"UNINITIALIZED", "DRIVER_NOT_LOADED", "LIBRARY_NOT_FOUND", "LIB_RM_VERSION_MISMATCH"}
"""Answers about the driver, whichever GPU was asked for."""
COLLECTORS = ("identity", "gpu", "nvlink", "pcie")
STEP, HEALTHY_STEPS, BROKEN_STEPS = 60.0, 3, 12
"""Seconds; 12 steps are twelve minutes."""
BROKEN, SHARE = 1, 0.1
"""Index of the GPU, of three, and the share of its calls that fail once in ten."""


class TenthCall(FakeGpu):
    """A GPU of which one call in ten fails, in no order."""

    error: int
    dice: Random

    @property
    def code(self) -> int:  # type: ignore[override]  # an attribute of the others
        return self.error if self.dice.random() < SHARE else 0


def kind_of(code: int) -> tuple[object, ...]:
    """All that the source distinguishes of an error: those of one kind it treats alike."""
    sets = (codes.NOT_THERE, codes.ABSENT, codes.GONE, codes.NO_DRIVER, codes.HANDLE_DEAD)
    by_name = (pynvml.NVML_ERROR_INVALID_ARGUMENT, pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_TIMEOUT)
    return codes.reason_of(code), *(code in one for one in sets), code if code in by_name else None


def as_init_error(library: Library, code: int) -> None:
    """The session ends, and a new one is refused."""
    library.init_code = code
    for gpu in library.gpus:
        gpu.code = pynvml.NVML_ERROR_UNINITIALIZED


def on_one_gpu(library: Library, code: int) -> None:
    """Every call on it."""
    library.gpus[BROKEN].code = code


def on_all_gpus(library: Library, code: int) -> None:
    """Every call on each."""
    for gpu in library.gpus:
        gpu.code = code


def once_in_ten(library: Library, code: int) -> None:
    """One call in ten on one GPU."""
    gpu = library.gpus[BROKEN]
    gpu.__class__ = TenthCall
    vars(gpu).update(error=code, dice=Random(4))  # noqa: S311 - the same calls each time


WAYS: dict[str, Callable[[Library, int], None]] = {
    "as NVML is opened": as_init_error,
    "each call on one GPU": on_one_gpu,
    "each call on all GPUs": on_all_gpus,
    "one call in ten on one GPU": once_in_ten,
}


class Driver:
    """What a worker of these collectors gives: it opens the driver, and lets go of it where it cannot be read."""

    def __init__(self, daemon: FedDaemon) -> None:
        self._daemon = daemon
        self._source: NvmlSource | None = None

    def read(self, collector: str) -> Collected | SourceUnavailable:
        """One run of a collector."""
        source = self._source or NvmlSource(self._daemon.clock.monotonic)
        try:
            if self._source is None:
                source.open(lambda device: None, frozenset(), None)
                self._source = source
            batch = source.collect(collector)
        except SourceUnavailable as error:
            self.close()
            return error
        blocks = {
            one.device: self._daemon.block(dict(zip(one.series, one.values, strict=True))) for one in batch.readings
        }
        return Collected(blocks, batch.absences, 0.0, batch.events, occupants=batch.occupants)

    def close(self) -> None:
        """Let go of the driver."""
        if self._source is not None:
            self._source.close()
            self._source = None


@dataclass(frozen=True)
class Seen:
    """What the daemon says at the end."""

    findings: tuple[Finding, ...]
    states: dict[str, str]
    """By index of the GPU."""
    driver: str
    """Reason for which it cannot be used."""
    failing: frozenset[str]
    """Reasons for which devices fail."""

    @property
    def words(self) -> str:
        """The cell of the table."""
        shown = [f"driver: {self.driver}"] if self.driver else []
        shown += [f"GPU: {state}" for state in dict.fromkeys(self.states.values()) if state != "ok"]
        shown += [f"device: {reason}" for reason in sorted(self.failing)]
        counted = Counter((one.severity, one.code) for one in self.findings)
        kinds = {"critical": "page", "warning": "ticket"}
        found = [
            f"{kinds[severity]} `{code}`{f' × {count}' if count > 1 else ''}"
            for (severity, code), count in counted.items()
        ]
        return "; ".join([*(one.replace("_", " ") for one in shown), *found]) or "–"


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, int], Seen]]:
    """What the daemon says after an error has lasted for twelve minutes; one of each kind is played, once."""
    with pytest.MonkeyPatch.context() as patch:

        @cache
        def played(way: str, code: int) -> Seen:
            return play(tmp_path_factory.mktemp("error"), way, code, patch)

        yield lambda way, code: played(way, next(one for one in ERRORS.values() if kind_of(one) == kind_of(code)))


def play(folder: Path, way: str, code: int, patch: pytest.MonkeyPatch) -> Seen:
    library = library_of_three()
    patch.setattr(pynvml, "nvmlLib", library)
    patch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    for address in ("0000:17:00.0", "0000:18:00.0", "0000:19:00.0"):
        device = folder / "sysfs/bus/pci/devices" / address
        device.mkdir(parents=True)
        (device / "class").write_text("0x030200\n")
        (device / "vendor").write_text("0x10de\n")
    every = NvmlSection(**{f"{key}_interval": Duration(STEP) for key in COLLECTORS})  # type: ignore[arg-type]  # by name
    daemon = FedDaemon(
        folder, patch, Config(inventory=Inventory(learn_after=Duration(STEP)), sources=Sources(nvml=every))
    )  # fmt: skip
    daemon.absent = {name: "not here" for name in SOURCES if name != "nvml"}
    daemon.engine.collection.tend()
    engine, driver = daemon.engine, Driver(daemon)
    daemon.instruments.config_reload_successful.set(1)
    for step in range(HEALTHY_STEPS + BROKEN_STEPS):
        if step == HEALTHY_STEPS:
            assert not grave(engine)
            WAYS[way](library, code)
        daemon.clock.now += STEP
        for key in COLLECTORS:
            daemon.feed(f"nvml_{key}", driver.read(key))
        engine.expire()
        engine.look()
        assert not engine.verdict.failing_rules
    driver.close()
    snapshot = engine.store.snapshot()
    return Seen(
        grave(engine),
        {labels["gpu"]: GPU_STATES[int(value)] for labels, value in snapshot.samples("commwatch_gpu_state")},
        next((one["reason"] for one, flag in snapshot.samples("commwatch_driver_unusable") if flag), ""),
        frozenset(one["reason"] for one, _ in snapshot.samples("commwatch_collector_device_failing")),
    )


def grave(engine: Engine) -> tuple[Finding, ...]:
    """What somebody must see."""
    return tuple(one for one in engine.verdict.findings if one.severity != "info")


def library_of_three() -> Library:
    gpus = [hopper(2) for _ in range(3)]
    for number, gpu in enumerate(gpus):
        gpu.pci_bus_id = f"00000000:{0x17 + number:02X}:00.0".encode()
        gpu.uuid = b"GPU-" + gpu.pci_bus_id
    return Library(gpus)


@in_one_pass("name", ERRORS)
def test_a_driver_that_cannot_be_opened_is_one_page(name: str, seen: Callable[[str, int], Seen]) -> None:
    """Whatever the error; no GPU and no collector is found besides."""
    found = seen("as NVML is opened", ERRORS[name])

    assert [(one.severity, CODES[one.code].alert) for one in found.findings] == [
        ("critical", "CommwatchDriverUnusable")
    ]


@in_one_pass("name", ERRORS)
@in_one_pass("way", list(WAYS)[1:])
def test_what_lasts_on_a_gpu_is_found_once(way: str, name: str, seen: Callable[[str, int], Seen]) -> None:
    """A finding for each GPU that it is on, or one for the driver: never two of one GPU, and none of the others."""
    code = ERRORS[name]
    found = seen(way, code)
    where = Counter(one.component.identity for one in found.findings)

    assert set(where.values()) <= {1}
    of_one_gpu = name in OF_A_GPU
    of_driver = name in OF_THE_DRIVER or (way == "each call on all GPUs" and not of_one_gpu)
    if of_driver and way != "one call in ten on one GPU":
        assert set(where) == {"node"}
    elif way == "each call on all GPUs":
        assert set(where) == {f"gpu/0000:{0x17 + number:02x}:00.0" for number in range(3)}
    elif way == "each call on one GPU":
        assert set(where) == {"gpu/0000:18:00.0"}


def test_the_document_is_current(seen: Callable[[str, int], Seen], request: pytest.FixtureRequest) -> None:
    """docs/reference/nvml-errors.md has each error and each way."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, code in ERRORS.items():
        alike.setdefault(tuple(seen(way, code).words for way in WAYS), []).append(f"{name} ({code})")
    rows = [("error", *WAYS), ("---",) * (len(WAYS) + 1)]
    rows += [(", ".join(names), *words) for words, names in alike.items()]
    text = INTRODUCTION + "".join(f"| {' | '.join(row)} |\n" for row in rows)

    if request.config.getoption("--update-golden"):
        DOCUMENT.write_text(text, encoding="utf-8")
    assert text == DOCUMENT.read_text(encoding="utf-8")


INTRODUCTION = """\
# Errors of NVML

The table shows how commwatch reports each error of NVML after twelve minutes, on a node with three learned GPUs:
`commwatch_driver_unusable` by reason ("driver"), `commwatch_gpu_state` ("GPU"), `commwatch_collector_device_failing` by
reason ("device"), and the open [findings](findings/README.md). A page is of severity critical, a ticket of severity
warning. A GPU whose calls do not return gives no error: it is "not answering", a page. `NOT_SUPPORTED` or
`INVALID_ARGUMENT` of a single call means that the counter does not exist. Collectors run every 60 s here, so a GPU that
was not found once is missing for that time; a daemon checks again at once.
`pytest tests/nvml/test_every_error.py --update-golden` writes this page.

"""
