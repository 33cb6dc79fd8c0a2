"""Probes of a running daemon over a simulated node: what they find, and how they give way."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

from commwatch.probes.cycle.lock import LOCK_FILE, held_elsewhere
from support.daemon import Daemon, command, running

CONFIG = """
inventory: {learn_after: 1s}
probes:
  start_delay: 500ms
  definitions:
    pairs: {interval: 1s}
    all_reduce: null
    all_gather: null
    reduce_scatter: null
    broadcast: null
    all_to_all: null
    host_copies: null
    scaling: null
"""
HANG = "- {fault: probe_hang, phase: measure, rank: 1}\n"
SLACK_SECONDS = 1.0
"""Of a busy machine, beyond the second within which a cycle gives way."""


def suspects(daemon: Daemon) -> set[tuple[str, str]]:
    """Kind and element of each."""
    found = [dict(labels) for name, labels in daemon.samples() if name == "commwatch_suspect_ratio"]
    return {(labels["kind"], labels["element"]) for labels in found}


def counted(daemon: Daemon, metric: str) -> dict[str, float]:
    """What was counted at all, by reason."""
    samples = [(name, dict(labels), value) for (name, labels), value in daemon.samples().items()]
    return {labels["reason"]: value for name, labels, value in samples if name == f"commwatch_probe_{metric}" and value}


def attempts(daemon: Daemon) -> float:
    return daemon.value("probe_attempts_total", probe="pairs", backend="simulated") or 0.0


def inject(file: Path, text: str) -> None:
    """Replace the file of faults whole."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def hanging_cycle(daemon: Daemon, faults: Path) -> None:
    """Wait until a cycle is under way that does not end by itself."""
    lock = daemon.state / "simulated-rtx3090x4" / LOCK_FILE
    daemon.until(lambda: not held_elsewhere(lock))
    inject(faults, HANG)
    daemon.until(lambda: held_elsewhere(lock))


def test_a_slow_gpu_is_named_and_cleared_and_jobs_come_first(tmp_path: Path) -> None:
    """Three matrices name the GPU, a good one clears it; a job and a prologue end a cycle, which is no failure."""
    faults, config = tmp_path / "faults.yaml", tmp_path / "commwatch.yaml"
    faults.write_text("- {fault: slow_gpu, gpu: 2, bandwidth: 0.5, at: 0s}\n")
    config.write_text(CONFIG)
    arguments = ("--simulate", "rtx3090x4", "--simulate.faults", str(faults), "--config.file", str(config))
    with running(tmp_path, *arguments) as daemon:
        daemon.until(lambda: suspects(daemon))
        assert suspects(daemon) == {("gpu", "GPU2")}
        assert attempts(daemon) >= 3
        ends = {tuple(dict(labels)[end] for end in ("src", "dst", "backend")) for name, labels in daemon.samples()
                if name == "commwatch_pair_bandwidth_bytes_per_second"}  # fmt: skip
        assert ends == {(str(one), str(two), "simulated") for one in range(4) for two in range(4) if one != two}
        inject(faults, "")
        daemon.until(lambda: not suspects(daemon))

        hanging_cycle(daemon, faults)
        before = attempts(daemon)
        said = command("yield", "--wait", "5s", "--hold", "0s", "--path.state", str(daemon.state), *arguments[:2])
        assert (said.returncode, said.stdout) == (0, "no probe holds a GPU\n")
        daemon.until(lambda: counted(daemon, "yields_total") == {"requested": 1})

        hanging_cycle(daemon, faults)
        comes = datetime.now(tz=timezone.utc).timestamp() + 1.0
        at = datetime.fromtimestamp(comes, tz=timezone.utc).isoformat().replace("+00:00", "Z")
        inject(faults, f"{HANG}- {{fault: job, gpu: 1, at: {at}}}\n")
        daemon.until(lambda: len(daemon.events("probe gave way")) == 2)
        gave_way = daemon.events("probe gave way")[-1]
        assert gave_way["reason"] == "process_appeared"
        assert datetime.fromisoformat(gave_way["time"].replace("Z", "+00:00")).timestamp() - comes < 1.0 + SLACK_SECONDS

        daemon.until(lambda: counted(daemon, "skips_total").get("gpu_busy", 0) >= 1)
        said = command("yield", "--wait", "1s", "--hold", "10m", "--path.state", str(daemon.state), *arguments[:2])
        assert (said.returncode, said.stdout) == (0, "no probe holds a GPU; none starts for 10 min\n")
        daemon.until(lambda: counted(daemon, "skips_total").get("yielded", 0) >= 1)
        assert counted(daemon, "failures_total") == {}
        assert attempts(daemon) == before
