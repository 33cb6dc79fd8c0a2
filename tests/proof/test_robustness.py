"""One part hangs, is lost, comes or goes: the rest keeps its cadence, and the page stays true to the hardware."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from commwatch_rehearsal.simulation.node import SimulatedNode
from commwatch_rehearsal.simulation.presets import PRESETS
from support.daemon import Daemon, running
from support.no_alarm import assert_no_alarm
from support.recording import (
    Page,
    Record,
    assert_growing,
    assert_no_false_use,
    assert_whole,
    longest_rest,
    name_of,
    recorded,
)
from support.waiting import PATIENCE_SECONDS

NODE = "h100x8ndr"
ADDRESSES = ("0000:17:00.0", "0000:18:00.0", "0000:3a:00.0", "0000:3b:00.0",
             "0000:9a:00.0", "0000:9b:00.0", "0000:ba:00.0", "0000:bb:00.0")  # fmt: skip
NVML_INTERVAL = DEADLINE = 1.0
HOST_INTERVAL = 0.5
EDGE = 0.5
"""Values and what is said of their collector may change on two pages, so much apart."""
UPTIME = 600.0
"""The nodes have run so long: what began again is easily told from what went on."""
BYTES_PER_SECOND = 3e6
"""What each NVLink of an idle node sends, see docs/using/simulation.md."""
SLACK = 1.5
"""What a busy machine may add to a cadence, seconds."""
GROUPS = ("identity", "gpu", "processes", "nvlink", "nvlink_errors", "pcie", "gpm", "fabric", "events", "p2p")
"""What is read of the driver, as its settings name it."""
CONFIG = f"""
inventory: {{learn_after: 1500ms}}
probes: {{enabled: false}}
sources:
  nvml: {{deadline: {DEADLINE}s, {", ".join(f"{group}_interval: {NVML_INTERVAL}s" for group in GROUPS)}}}
  network: {{interval: {HOST_INTERVAL}s}}
  pci: {{interval: {HOST_INTERVAL}s, aer_interval: {HOST_INTERVAL}s}}
  rdma: {{interval: {HOST_INTERVAL}s}}
  ethtool: {{interval: {HOST_INTERVAL}s}}
  services: {{interval: {HOST_INTERVAL}s}}
  kernel_log: {{interval: {HOST_INTERVAL}s}}
"""
NVML = frozenset(f"nvml_{group}" for group in GROUPS)
HOST = ("network", "pci", "pci_aer", "rdma", "ethtool", "services", "kernel_log")
OF_EACH_COLLECTOR = {
    "gpu_info", "gpu_busy", "gpu_compute_processes", "nvlink_transmit_bytes_total", "nvlink_replay_errors_total",
    "pcie_replays_total", "pcie_transmit_bytes_total", "fabric_state", "gpu_p2p_status",
}  # fmt: skip
"""A metric of each collector of the driver that has any."""
KNOWN_WITHOUT_READING = {
    "finding", "collector_device_failing",
    "gpu_state", "gpu_info", "gpu_xid_events_total", "gpu_last_xid_timestamp_seconds", "kernel_log_gpu_messages_total",
    "gpu_xid_events_recent", "kernel_log_gpu_messages_recent", "pcie_fatal_errors_recent",
    "nvlink_link_expected", "pcie_link_width_expected_lanes", "counters_reset_total",
    "nvlink_capacity_bytes_per_second", "pcie_capacity_bytes_per_second",
}  # fmt: skip
"""What the page says of a GPU for which the driver does not answer: state, name, expectation, what was counted."""
KEPT_OF_A_PORT = (
    "_expected", "_speed_expected_bytes_per_second", "_capacity_bytes_per_second", "_flaps_total",
    "_reset_total", "_peak_ratio",
)  # fmt: skip
"""Of what was read before, and of what is expected."""
FROM_SYSFS = "pcie_device_", "pcie_bridge_", "pcie_aer_"
RESTS_WITH_ITS_WORKER = {
    "pcie_transmit_bytes_total", "pcie_receive_bytes_total",
    "pcie_transmit_rate_bytes_per_second", "pcie_receive_rate_bytes_per_second", "counters_state",
}  # fmt: skip
"""GPM measures between two samples of one process: after a replacement of the worker they are absent once."""
SUMS = {"present", "kernel_log_losses_total", "profile_info"}
"""Not known, or another, while a part of it cannot be read."""
JUDGED_WHILE_CURRENT = "pcie_link_degraded"
"""A verdict on a reading of three intervals at most: the replacement of a worker may take longer on a busy machine."""
HELD_AGAINST_OTHERS = {"gpu_below_equals", "gpu_below_product"}
"""What a GPU has less than its equals or its product: known while it is here."""


@dataclass
class Episode:
    """A daemon on a simulated node, everything that it has exposed, and its file of faults."""

    daemon: Daemon
    record: Record
    faults: Path

    def inject(self, text: str) -> Page:
        """Replace the faults; the page of just before."""
        before = self.record.last
        write_faults(self.faults, text)
        return before

    def until(self, holds: Callable[[Page], object], seconds: float = PATIENCE_SECONDS) -> Page:
        """The first page from now on on which something holds."""
        looked_at = len(self.record.pages) - 1

        def found() -> Page | None:
            nonlocal looked_at
            pages = self.record.after(looked_at)
            looked_at += len(pages)
            return next((page for page in pages if holds(page)), None)

        page = self.daemon.until(found, seconds)
        assert isinstance(page, Page)
        return page

    def settle(self, seconds: float) -> Page:
        """Go on recording for a while: what must not come has had the time to."""
        end = self.record.last.time + seconds
        return self.until(lambda page: page.time >= end)


def write_faults(file: Path, text: str) -> None:
    """Replaced whole, so that a daemon never reads half of it."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


@contextmanager
def episode(folder: Path) -> Iterator[Episode]:
    """A healthy node with fast collectors whose parts are known and expected."""
    config, faults = folder / "commwatch.yaml", folder / "faults.yaml"
    config.write_text(CONFIG)
    faults.write_text("[]\n")
    state = folder / "state" / f"simulated-{NODE}"
    state.mkdir(parents=True)
    (state / "simulation.json").write_text(f'{{"started_at": {time.time() - UPTIME}}}')
    arguments = ("--config.file", str(config), "--simulate", NODE, "--simulate.faults", str(faults))
    with running(folder, *arguments) as daemon, recorded(daemon) as record:
        one = Episode(daemon, record, faults)
        one.until(is_complete)
        yield one
    assert_no_false_use(record.pages)


def is_complete(page: Page) -> bool:
    """Whether everything is read, expected, and has a rate."""
    return (
        len(page.where("nvlink_link_expected")) == 144
        and len(page.where("pcie_receive_utilization_ratio")) == 8
        and len(page.where("nvlink_receive_utilization_ratio")) == 8
        and len(page.where("rdma_port_receive_utilization_ratio")) == 10
        and bool(page.where("counters_state", counter="gpm_metric_pcie_tx"))
        and set(page.where("collector_success").values()) == {1}
    )


def success(page: Page) -> dict[str, float | None]:
    """Whether the last run of each collector read everything."""
    return {name: page.value("collector_success", collector=name) for name in (*NVML, *HOST)}


def failing(page: Page) -> set[str]:
    """The collectors whose last run failed."""
    return {name for name, value in success(page).items() if value == 0}


def state_of(page: Page, gpu: int) -> float | None:
    """The state of the GPU in a slot."""
    return page.value("gpu_state", pci_bus_id=ADDRESSES[gpu])


def of_driver(page: Page, gpu: int) -> set[str]:
    """Metrics of a GPU that only a driver which answers can give."""
    return {
        name
        for name in page.naming(ADDRESSES[gpu]) - KNOWN_WITHOUT_READING
        if not name.startswith(FROM_SYSFS) and not name.startswith("pcie_link_")
    }


def is_of(*parts: str) -> Callable[[str], bool]:
    """Whether a series names one of these parts, or may rest with its worker, or is a use across such a gap."""

    def may(series: str) -> bool:
        name = name_of(series)
        rests = RESTS_WITH_ITS_WORKER | HELD_AGAINST_OTHERS
        return any(part in series for part in parts) or name in rests or "utilization_ratio" in name

    return may


def port_above(address: str) -> tuple[str, ...]:
    """The bridge that a device hangs below, which has no link without it."""
    return PRESETS[NODE].ancestors(address)[:1]


def is_of_driver(series: str) -> bool:
    """Whether a series is, or is made of, what the driver gives."""
    name = name_of(series)
    of_host = name.startswith(("rdma_", "ethernet_", "pcie_device_", "pcie_aer_", "kernel_log_"))
    return name in HELD_AGAINST_OTHERS or not of_host


def assert_host_cadence(pages: list[Page]) -> None:
    """The host's collectors succeed again and again, and what they count moves at their interval."""
    for page in pages:
        assert failing(page) <= NVML, failing(page) - NVML
    for series in (
        'commwatch_ethernet_transmit_bytes_total{device="ens11f0np0"}',
        'commwatch_ethernet_phy_transmit_bytes_total{device="ens11f0np0"}',
        'commwatch_rdma_port_transmit_bytes_total{device="mlx5_1",port="1"}',
    ):
        assert longest_rest(pages, series) < 2 * HOST_INTERVAL + SLACK, series


def assert_no_false_rate(pages: list[Page], gpus: Iterable[int]) -> None:
    """What Prometheus would make of the first NVLink of GPUs is near what the node sends, 3 MB/s, at every time."""
    for gpu in gpus:
        seen = [(page.time, sent) for page in pages if (sent := link(gpu, page)) is not None]
        for (earlier, before), (later, now) in pairwise(seen):
            increase = now - before if now >= before else now
            # A fall to a number that counts the time since the reset, not more than the time since the last page.
            assert now < before or increase <= 1.3 * BYTES_PER_SECOND * (later - earlier + NVML_INTERVAL + SLACK)


def link(gpu: int, page: Page) -> float | None:
    """Bytes that the first NVLink of a GPU has sent."""
    return page.value("nvlink_transmit_bytes_total", pci_bus_id=ADDRESSES[gpu], link="0")


# --- a long story, told beside the others: what is tried again only after half a minute ---


@dataclass
class LongStory:
    """Two GPUs, an RDMA port, an interface and the kernel log fail, and come back."""

    record: Record
    before: Page
    gpus_gone: Page
    gpus_back: Page
    log_gone: Page
    log_back: Page
    port_gone: Page
    port_back: Page
    reset: Page
    interface_down: Page
    interface_up: Page


def tell(folder: Path) -> LongStory:
    """Live through the long story."""
    with episode(folder) as one:
        lost = "- {fault: gpu_lost, gpu: 6, for: 12s}\n- {fault: gpu_reset_required, gpu: 5, for: 12s}\n"
        before = one.inject(f"{lost}- {{fault: rdma_read_error, device: mlx5_2, for: 12s}}\n")
        written = time.time()
        gpus_gone = one.until(lambda page: (state_of(page, 5), state_of(page, 6)) == (3, 2))
        port_gone = one.until(lambda page: success(page)["rdma"] == 0)
        one.until(lambda page: failing(page) >= NVML)
        one.settle(1)
        # From here on in one file, with times: a file that is written again begins again what has none.
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(written))
        timed = "".join(
            f"- {{fault: {fault}, at: {started}, for: 14s}}\n"
            for fault in ("gpu_lost, gpu: 6", "gpu_reset_required, gpu: 5", "rdma_read_error, device: mlx5_2")
        )
        one.inject(
            f"{timed}- {{fault: kernel_log_unreadable, for: 8s}}\n"
            f"- {{fault: rdma_counter_reset, device: mlx5_0, at: {started}}}\n"  # once, also for a reader that is new
            "- {fault: ethernet_down, interface: ens11f0np0, for: 8s}\n"
        )
        log_gone = one.until(lambda page: success(page)["kernel_log"] == 0)
        reset = one.until(lambda page: page.value("counters_reset_total", device="mlx5_0:1"))
        down = one.until(lambda page: page.value("ethernet_carrier", device="ens11f0np0") == 0)
        log_back = one.until(lambda page: success(page)["kernel_log"] == 1)
        up = one.until(lambda page: page.value("ethernet_carrier", device="ens11f0np0") == 1)
        gpus_back = one.until(lambda page: (state_of(page, 5), state_of(page, 6)) == (0, 0))
        one.until(is_complete)
        port_back = one.record.when(lambda page: success(page)["rdma"] == 1, port_gone)
        one.settle(1)
        return LongStory(
            one.record, before, gpus_gone, gpus_back, log_gone, log_back, port_gone, port_back, reset, down, up
        )


@pytest.fixture(scope="module", autouse=True)
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Future[LongStory]]:
    """Begins with the first test and goes on beside the others; the last ones read it."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(tell, tmp_path_factory.mktemp("story"))


# --- the driver ---


def test_a_hung_gpu_is_absent_in_every_collector_and_nothing_else_is(tmp_path: Path) -> None:
    """All else keeps its cadence, no counter falls, the page stays quick; and it comes back as it was."""
    with episode(tmp_path) as one:
        before = one.inject("- {fault: driver_hang, gpu: 3, for: 4s}\n")
        gone = one.until(lambda page: state_of(page, 3) == 1)
        everywhere = one.until(lambda page: failing(page) == NVML)
        back = one.until(lambda page: failing(page) == set() and state_of(page, 3) == 0)
        after = one.until(is_complete)

    pages = one.record.since(before)
    hung = [page for page in pages if gone.time <= page.time and state_of(page, 3) == 1]
    assert before.naming(ADDRESSES[3]) >= OF_EACH_COLLECTOR
    assert everywhere.time - gone.time < NVML_INTERVAL + SLACK
    still = [page for page in hung if everywhere.time < page.time and failing(page) == NVML]
    assert still
    assert not set().union(*(of_driver(page, 3) for page in still))
    # Of all pages since the hang was noticed, the pairs with other GPUs alone may still be told, by those others.
    assert set().union(*(of_driver(page, 3) for page in pages if gone.time <= page.time < everywhere.time)) <= {
        "gpu_p2p_status"
    }
    assert {state_of(page, 3) for page in pages} == {0, 1}
    assert {state_of(page, gpu) for page in pages for gpu in range(8) if gpu != 3} == {0}
    assert_whole(before, pages, lambda one: is_of(ADDRESSES[3])(one) or name_of(one) == JUDGED_WHILE_CURRENT)
    assert_growing(pages, lambda series: name_of(series) in RESTS_WITH_ITS_WORKER)
    for gpu in (0, 2, 4, 7):
        series = next(iter(before.where("nvlink_transmit_bytes_total", pci_bus_id=ADDRESSES[gpu], link="0")))
        assert longest_rest(pages, series) < DEADLINE + 2 * NVML_INTERVAL + SLACK
    assert_host_cadence(pages)
    assert sorted(page.took for page in hung)[len(hung) // 2] < 0.1
    # In a process of its own it has no peers.
    assert after.naming(ADDRESSES[3]) >= before.naming(ADDRESSES[3]) - {"gpu_p2p_status"}
    assert (link(3, after) or 0) > (link(3, before) or 0)
    assert back.value("counters_reset_total", source="nvml", device=ADDRESSES[3]) == 0


def test_a_driver_that_is_reloaded_is_read_again(tmp_path: Path) -> None:
    """Nothing of it is shown meanwhile, no GPU is called missing, its counters begin again, all else goes on."""
    with episode(tmp_path) as one:
        before = one.inject("- {fault: driver_reload, for: 3s}\n")
        gone = one.until(lambda page: failing(page) == NVML)
        back = one.until(lambda page: failing(page) == set())
        after = one.until(is_complete)

    pages = one.record.since(before)
    away = [page for page in pages if gone.time <= page.time and failing(page) == NVML]
    assert not set().union(*(of_driver(page, gpu) for page in away for gpu in range(8)))
    assert all(not page.where("gpu_state") for page in away)
    assert {value for page in pages for value in page.where("gpu_state").values()} == {0}
    assert all(page.value("source_available", source="nvml") == 0 for page in away)
    for name in NVML:
        assert (gone.value("collector_errors_total", collector=name, reason="no_driver") or 0) >= 1
    assert_whole(before, pages, is_of_driver)
    assert_host_cadence(pages)
    named = [{name_of(series) for series in page.values} for page in (before, after)]
    # Settings are audited again when the processes on the GPUs are known again, half a minute after the last time.
    assert {name for name in named[0] - named[1] if not name.startswith("nccl_setting_")} == set()
    assert len(after.where("gpu_p2p_status")) == len(before.where("gpu_p2p_status")) == 8 * 7 * 2
    assert set(after.where("fabric_state").values()) == {3}
    assert_no_false_rate(pages, range(8))
    for gpu in range(8):
        assert (link(gpu, back) or 0) < (link(gpu, before) or 0)
        assert (after.value("counters_reset_total", source="nvml", device=ADDRESSES[gpu]) or 0) >= 1


def test_a_card_that_is_gone_and_one_that_is_added_while_running(tmp_path: Path) -> None:
    """The missing one is named and leaves nothing else behind; the others move up; it is read when it is back."""
    with episode(tmp_path) as one:
        before = one.inject("- {fault: gpu_missing, gpu: 2, for: 5s}\n")
        one.until(lambda page: state_of(page, 2) == 4)
        gone = one.until(lambda page: failing(page) == set() and not of_driver(page, 2) and not page.naming('gpu="7"'))
        one.until(lambda page: state_of(page, 2) == 0)
        after = one.until(lambda page: is_complete(page) and set(before.values) <= set(page.values))

    pages = one.record.since(before)
    assert gone.value("present", kind="gpu") == 7
    assert gone.value("expected", kind="gpu") == 8
    missing = [page for page in pages if page.time >= gone.time and state_of(page, 2) == 4]
    assert {state_of(page, gpu) for page in missing for gpu in range(8) if gpu != 2} == {0}
    assert not set().union(*(of_driver(page, 2) for page in missing))
    assert after.value("present", kind="gpu") == 8
    assert after.value("gpu_state", gpu="2", pci_bus_id=ADDRESSES[2]) == 0
    assert_host_cadence(pages)


# --- every preset ---


def healthy(folder: Path, preset: str) -> tuple[str, list[dict[str, object]]]:
    """The page and the log of a daemon that has read everything twice."""
    config = folder / "commwatch.yaml"
    config.write_text(CONFIG)
    with running(folder, "--config.file", str(config), "--simulate", preset) as daemon, recorded(daemon) as record:
        ready = record.last
        daemon.until(lambda: record.last.time > ready.time + 2.5)
        text = daemon.get("/metrics")[1]
        log = daemon.log()
    assert_no_false_use(record.pages)
    assert_growing(record.pages, lambda series: False)
    assert_whole(ready, record.pages, lambda series: False)
    return text, log


@pytest.mark.prometheus
def test_a_healthy_node_of_every_preset_raises_nothing(tmp_path: Path) -> None:
    """Every collector succeeds, nothing is warned of, every judge of pages is content, and no alarm is false."""
    folders = {preset: tmp_path / preset for preset in PRESETS}
    for folder in folders.values():
        folder.mkdir()
    with ThreadPoolExecutor(4) as pool:
        results = dict(zip(PRESETS, pool.map(lambda preset: healthy(folders[preset], preset), PRESETS), strict=True))

    for preset, (text, log) in results.items():
        assert [event for event in log if event["level"] != "info"] == [], preset
        values = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        successes = {key[1]: value for key, value in values.items() if key[0] == "commwatch_collector_success"}
        assert set(successes) >= {"nvml_nvlink", "nvml_identity", "network", "pci", "kernel_log"}, preset
        assert set(successes.values()) == {1}, preset
        assert_no_alarm(values, preset)
        checked = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True)
        # promtool takes the word for the type of the metric; here it names the thing that is measured.
        said = [line for line in checked.stderr.splitlines() if not line.endswith("should not include type 'counter'")]
        assert said == [], preset


# --- devices of sysfs that come and go ---


def test_devices_of_sysfs_that_come_and_go(tmp_path: Path) -> None:
    """A removed RDMA device, interface and PCIe device are gone at once, the others go on, and come back as they were.

    The tree is that of a simulated node; the daemon takes it for its real one.
    """
    tree, node = tmp_path / "sys", SimulatedNode(NODE, None, time.time() - 600)
    node.write_sysfs(tree)
    config = tmp_path / "commwatch.yaml"
    sources = CONFIG.replace("nvml: {", "nvml: {enabled: false, ").replace(
        f"kernel_log: {{interval: {HOST_INTERVAL}s}}", "kernel_log: {enabled: false}"
    )
    config.write_text(sources.replace(f"ethtool: {{interval: {HOST_INTERVAL}s}}", "ethtool: {enabled: false}"))
    away = {
        "mlx5_3": tree / "class/infiniband/mlx5_3",
        "ens11f1np1": tree / "class/net/ens11f1np1",
        ADDRESSES[4]: tree / "bus/pci/devices" / ADDRESSES[4],
    }
    targets = {name: path.readlink() for name, path in away.items()}
    with running(tmp_path, "--config.file", str(config), "--path.sysfs", str(tree)) as daemon, ExitStack() as stack:
        one = Episode(daemon, stack.enter_context(recorded(daemon)), tmp_path / "none")
        before = one.until(lambda page: page.value("expected", kind="rdma_port") == 10)
        for path in away.values():
            path.unlink()
        gone = one.until(lambda page: not any(device_metrics(page, name) for name in away))
        one.until(lambda page: page.value("present", kind="rdma_port") == 9)
        one.settle(1)
        node.write_sysfs(tree, ("network", "rdma", "pci"))
        for name, path in away.items():
            path.symlink_to(targets[name])
        one.until(lambda page: set(before.values) <= set(page.values))
        one.until(lambda page: page.value("present", kind="rdma_port") == 10)

    pages = one.record.since(before)
    assert all(device_metrics(before, name) for name in away)
    assert gone.time - before.time < HOST_INTERVAL + SLACK
    assert {page.value("expected", kind="rdma_port") for page in pages} == {10}
    parts = is_of(*away, *port_above(ADDRESSES[4]))
    assert_whole(before, pages, lambda series: parts(series) or name_of(series) in SUMS)
    for series in (
        'commwatch_ethernet_carrier{device="ens11f0np0"}',
        'commwatch_rdma_port_state{device="mlx5_1",port="1"}',
        f'commwatch_pcie_device_link_width_lanes{{device="{ADDRESSES[0]}"}}',
    ):
        assert all(series in page.values for page in pages), series
    assert all(set(page.where("collector_success").values()) == {1} for page in pages)
    assert_no_false_use(pages)
    shutil.rmtree(tree)


def device_metrics(page: Page, name: str) -> set[str]:
    """What is read of a device: all but what is expected of it or was counted about it."""
    return {metric for metric in page.naming(f'device="{name}"') if not metric.endswith(KEPT_OF_A_PORT)}


# --- the long story: these come last, because it takes half a minute ---


def test_lost_gpus_are_named_and_come_back_after_a_reset(story: Future[LongStory]) -> None:
    """Their series are gone until a new process sees them again, from 0; Xid 79 counts once; the others go on."""
    told = story.result()

    pages = told.record.since(told.before)
    lost = [page for page in pages if told.gpus_gone.time + 2 < page.time < told.gpus_back.time - 2]
    assert lost
    assert {(state_of(page, 5), state_of(page, 6)) for page in lost} == {(3, 2)}
    assert not set().union(*(of_driver(page, gpu) for page in lost for gpu in (5, 6)))
    assert all(failing(page) >= NVML for page in lost)
    assert {state_of(page, gpu) for page in pages for gpu in (0, 1, 2, 3, 4, 7)} == {0}
    assert {state_of(page, 5) for page in pages} == {0, 3}
    assert {state_of(page, 6) for page in pages} == {0, 2}
    last = told.record.last
    assert last.value("gpu_xid_events_total", xid="79", pci_bus_id=ADDRESSES[6]) == 1
    assert last.value("gpu_xid_events_total", xid="79", pci_bus_id=ADDRESSES[5]) in (None, 0)
    for gpu in (5, 6):
        assert (link(gpu, last) or 0) < (link(gpu, told.before) or 0)
        assert (last.value("counters_reset_total", source="nvml", device=ADDRESSES[gpu]) or 0) >= 1
    assert last.value("counters_reset_total", source="nvml", device=ADDRESSES[0]) == 0


def test_an_rdma_port_that_cannot_be_read_is_absent_alone(story: Future[LongStory]) -> None:
    """The collector says so, the other ports go on, and the port is read again after its rest."""
    told = story.result()

    pages = told.record.since(told.before)
    unread = [page for page in pages if told.port_gone.time <= page.time < told.port_back.time - EDGE]
    shown = set().union(*(page.naming('device="mlx5_2"') for page in unread))
    own = {"rdma_port_flaps_total", "rdma_port_down_seconds_total", "counters_reset_total"}
    assert shown & told.before.counters <= own
    assert not any(name.endswith("utilization_ratio") for name in shown)
    assert "rdma_port_transmit_bytes_total" in told.before.naming('device="mlx5_2"') & told.before.counters
    assert {value for page in pages for value in page.where("rdma_port_flaps_total", device="mlx5_2").values()} == {0}
    assert {success(page)["rdma"] for page in unread} == {0}
    assert told.record.last.naming('device="mlx5_2"') >= told.before.naming('device="mlx5_2"')
    for device in ("mlx5_1", "mlx5_3", "mlx5_9"):
        series = f'commwatch_rdma_port_transmit_bytes_total{{device="{device}",port="1"}}'
        assert series in told.before.values
        assert longest_rest(pages, series) < 2 * HOST_INTERVAL + SLACK


def test_a_kernel_log_that_cannot_be_read_stops_nothing_else(story: Future[LongStory]) -> None:
    """Its collector fails alone, and reads on afterwards."""
    told = story.result()

    assert told.log_gone.time < told.log_back.time
    assert success(told.log_gone)["kernel_log"] == 0
    assert success(told.record.last)["kernel_log"] == 1
    pages = [page for page in told.record.pages if told.log_gone.time <= page.time <= told.log_back.time]
    for page in pages:
        assert failing(page) - {"kernel_log"} == {*NVML, "rdma"}  # of the GPUs and the port that fail meanwhile


def test_counters_and_carriers_that_fall_raise_no_false_rate(story: Future[LongStory]) -> None:
    """A reset of an RDMA port is counted and has no rate; an interface that was down is present again."""
    told = story.result()

    sent = 'commwatch_rdma_port_transmit_bytes_total{device="mlx5_0",port="1"}'
    assert told.reset.values[sent] < told.before.values[sent]
    assert told.record.last.value("counters_reset_total", source="rdma", device="mlx5_0:1") == 1
    assert told.interface_down.time < told.interface_up.time
    assert told.record.last.value("present", kind="ethernet_port") == 2


def test_through_all_of_it_the_rest_keeps_its_cadence(story: Future[LongStory]) -> None:
    """No series of the other parts was ever absent, none of their counters fell, no scrape was slow."""
    told = story.result()

    pages = told.record.since(told.before)
    faulty = (
        ADDRESSES[5],
        ADDRESSES[6],
        *port_above(ADDRESSES[5]),
        *port_above(ADDRESSES[6]),
        '"mlx5_0"',
        '"mlx5_2"',
        '"mlx5_8"',
        "ens11f0np0",
        "bond0",
    )
    assert_whole(told.before, pages, lambda series: is_of(*faulty)(series) or name_of(series) in SUMS)
    assert_growing(pages, is_of(*faulty))
    for name in ("network", "pci", "pci_aer", "ethtool", "services"):
        assert {success(page)[name] for page in pages} == {1}, name
    for series in (
        'commwatch_ethernet_phy_transmit_bytes_total{device="ens11f1np1"}',
        'commwatch_rdma_port_transmit_bytes_total{device="mlx5_1",port="1"}',
    ):
        assert longest_rest(pages, series) < 2 * HOST_INTERVAL + SLACK, series
    assert_no_false_rate(pages, range(8))
    assert sorted(page.took for page in pages)[len(pages) // 2] < 0.1
