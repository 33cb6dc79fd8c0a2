"""What the kubelet says of a node: a gRPC server stands in for it, and a child of ours asks."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commwatch.probes.gate.decision import SchedulerAnswer
from commwatch.probes.gate.kubelet import ask_kubelet, read_kubelet
from probes.kubelet_stand_in import claim, devices, kubelet, pod
from support.waiting import PATIENCE_SECONDS

CPU_POD = pod("web")
GPU_POD = pod("train", devices("nvidia.com/gpu", "GPU-1", "GPU-2"))
FIRST_KUBELETS = "/v1alpha1.PodResourcesLister/List"


def ask(path: Path, answer: Callable[[], bytes], deadline: float = 10.0, **how: str) -> SchedulerAnswer:
    """Ask a stand-in from this process."""
    with kubelet(path, answer, **how):
        return read_kubelet(str(path), deadline)


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        (b"", ("free", "")),
        (CPU_POD, ("free", "")),
        (pod("net", devices("rdma/hca", "mlx5_0")), ("free", "")),
        (CPU_POD + GPU_POD, ("busy", "pod default/train has nvidia.com/gpu")),
        (pod("mig", devices("nvidia.com/mig-1g.10gb", "MIG-1")),
         ("busy", "pod default/mig has nvidia.com/mig-1g.10gb")),
        (pod("part", devices("nvidia.com/gpu.shared", "GPU-1::0"), namespace="ml"),
         ("busy", "pod ml/part has nvidia.com/gpu.shared")),
        (pod("dra", claim("one-gpu", "gpu.nvidia.com")), ("busy", "pod default/dra has claim one-gpu")),
        (pod("dra", claim("one-gpu")), ("busy", "pod default/dra has claim one-gpu")),
        (pod("dra", claim("one-gpu", "")), ("busy", "pod default/dra has claim one-gpu")),
        (pod("dra", claim("both", "net.example.org", "gpu.nvidia.com")), ("busy", "pod default/dra has claim both")),
        (pod("dra", claim("nic", "net.example.org")), ("free", "")),
        (GPU_POD + pod("more", devices("nvidia.com/gpu", "GPU-3")),
         ("busy", "pod default/train has nvidia.com/gpu; 2 pods have GPUs")),
    ],
)  # fmt: skip
def test_devices_of_pods(tmp_path: Path, pods: bytes, expected: SchedulerAnswer) -> None:
    """A node is busy with a GPU, a part of one, or a claim that is or may be one; other devices do not matter."""
    assert ask(tmp_path / "k.sock", lambda: pods) == expected


def test_a_child_asks(tmp_path: Path) -> None:
    """The way of the daemon, which has no gRPC itself: from the socket to the answer in another process."""
    with kubelet(tmp_path / "k.sock", lambda: GPU_POD):
        answer = asyncio.run(ask_kubelet(tmp_path / "k.sock", 10.0))

    assert answer == ("busy", "pod default/train has nvidia.com/gpu")


def refuses() -> bytes:
    raise ValueError("rate limited")


@pytest.mark.parametrize(
    ("answer", "how", "words"),
    [
        # One of before version 1 knows another service only.
        (bytes, {"method": FIRST_KUBELETS}, "Kubernetes has from 1.20"),
        (refuses, {}, "rate limited"),
        # Bytes that are no message do not make a node free.
        (lambda: b"\xff\xff\xff", {}, ""),
    ],
)
def test_a_kubelet_that_does_not_say_it_is_no_free_node(
    tmp_path: Path, answer: Callable[[], bytes], how: dict[str, Any], words: str
) -> None:
    """Its own words reach the operator."""
    found = ask(tmp_path / "k.sock", answer, **how)

    assert words in found.detail
    assert found.state == "unknown"


def test_a_kubelet_that_hangs(tmp_path: Path) -> None:
    """The deadline is kept, and named."""
    released = threading.Event()

    def answer() -> bytes:
        released.wait(PATIENCE_SECONDS)
        return b""

    with kubelet(tmp_path / "k.sock", answer):
        found = read_kubelet(str(tmp_path / "k.sock"), 0.5)
        released.set()

    assert found.state == "unknown"
    assert "gave no answer" in found.detail


def test_what_cannot_be_asked_is_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that is not there, one left by a kubelet that ended, one that only root may open, and no gRPC here."""
    left = tmp_path / "k.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(left))

    class Refusing(socket.socket):
        def connect(self, address: object) -> None:
            raise PermissionError(13, "Permission denied")

    assert "set probes.kubelet_socket" in read_kubelet(str(tmp_path / "none.sock"), 5.0).detail
    assert "see that the kubelet runs" in read_kubelet(str(left), 5.0).detail
    with monkeypatch.context() as patched:
        patched.setattr("commwatch.probes.gate.kubelet.socket.socket", Refusing)
        assert "run as root" in read_kubelet(str(left), 5.0).detail
    monkeypatch.setitem(sys.modules, "grpc", None)
    assert "install commwatch[kubernetes]" in read_kubelet(str(left), 5.0).detail


def test_a_child_that_fails_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a crash nor a text of its own makes the node free."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'No module named commwatch' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))

    answer = asyncio.run(ask_kubelet(tmp_path / "k.sock", 5.0))

    assert answer == ("unknown", "the kubelet cannot be asked: No module named commwatch")
