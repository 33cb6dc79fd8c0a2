"""The bundle for a vendor: what is in it, what is not, and that no secret is."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest

from commwatch.commands import diagnose as diagnose_command
from commwatch.config.settings import Config, KernelLogSection, NcclLogsSection, NvmlSection, Paths, Probes, Sources
from commwatch.diagnosis import bundle_machine
from commwatch.diagnosis.bundle import LeftOut, Piece, write_bundle
from commwatch.diagnosis.bundle_machine import Program, why_driver_is_left_alone
from commwatch.diagnosis.document import Diagnosis
from commwatch.node.topology.build import build_topology
from commwatch.node.topology.nvlink import DriverFacts
from commwatch.node.topology.sysfs import SysfsFacts
from commwatch.workers.one_shot import Answer, NoAnswer
from support.daemon import ROOT
from support.diagnoses import component, faulty, finding, known_of

HOSTILE = "../../../etc/passwd"
SECRET = "hunter2"  # noqa: S105 - it is planted
DOCUMENTS = {
    "MANIFEST.json", "diagnosis.txt", "diagnosis.json", "report.html", "versions.json", "findings.json", "score.json",
    "snapshot.json", "thresholds.json", "configuration.yaml",
}  # fmt: skip
TOPOLOGY = {"topology.txt", "topology.json"}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A real node whose files are a test's, with a secret in its settings, its log and its programs."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    (tmp_path / "proc/version").write_text("Linux version 6.8.0\n")
    (tmp_path / "proc/modules").write_text("nvidia 1 2 - Live 0x0\n")
    line = f"NCCL WARN NET/IB : Got completion from peer 10.0.0.3<4> with status=12 {SECRET} vendor err 129"
    (tmp_path / "job.log").write_text(f"node7:1:2 [3] {line}\n")
    return Config(
        paths=Paths(sysfs=str(tmp_path / "sys"), procfs=str(tmp_path / "proc"), state=str(tmp_path / "state")),
        sources=Sources(
            nvml=NvmlSection(enabled=False),
            kernel_log=KernelLogSection(path=str(tmp_path / "kmsg")),
            nccl_logs=NcclLogsSection(paths=(str(tmp_path / "job.log"),)),
        ),
        probes=Probes(kubelet_socket=f"https://bob:{SECRET}@kubelet/sock"),
    )


def bundle(
    tmp_path: Path, config: Config, document: Diagnosis, values: dict[Any, Any] | None = None
) -> tuple[dict[str, str], dict[str, Any]]:
    """Files of the bundle by name within its folder, and its manifest."""
    file = tmp_path / "x.tar.gz"
    args = argparse.Namespace(report=None, bundle=file, log=None)
    diagnose_command.check_files(args)
    diagnose_command.write_files(args, config, known_of(document, values), document)
    with tarfile.open(file) as archive:
        names = archive.getnames()
        folder = names[0].partition("/")[0]
        assert all(name.startswith(f"{folder}/") and ".." not in name for name in names)
        found = {
            name.partition("/")[2]: stream.read().decode()
            for name in names
            if (stream := archive.extractfile(name)) is not None
        }
    return found, json.loads(found["MANIFEST.json"])


def reasons(manifest: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["reason"] for one in manifest["left_out"]}


def test_a_real_node_is_asked_for_all_and_no_secret_is_in_it(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Documents, files, programs and logs with their sums; what is missing with its reason; no planted secret."""
    monkeypatch.setenv("NCCL_PSK", SECRET)
    speaks, tells = tmp_path / "speaks", tmp_path / "tells"
    speaks.write_text(f"echo 'Product Name : H100'; echo '  Name : {SECRET}'")
    tells.write_text(f"env; echo API_TOKEN={SECRET}; exit 3")
    monkeypatch.setattr(bundle_machine, "PROGRAMS", (
        Program("speaks", ("sh", str(speaks)), 20.0, "NVIDIA", bundle_machine.without_process_names),
        Program("tells", ("sh", str(tells)), 20.0),
        Program("missing", ("commwatch-no-such-program",), 20.0),
    ))  # fmt: skip

    found, manifest = bundle(tmp_path, config, faulty())

    here = DOCUMENTS | TOPOLOGY | {"logs/jobs.json", "programs/speaks.txt", "programs/tells.txt"}
    here |= {"system/proc-version.txt", "system/proc-modules.txt", "system/os-release.txt"}
    assert set(found) | {"system/os-release.txt", *TOPOLOGY} == here
    assert not any(SECRET in text for text in found.values())
    assert "node7" not in found["logs/jobs.json"]
    assert json.loads(found["logs/jobs.json"])["incidents"][0]["counts"] == {"ib_retry": 1}
    assert "https://(left out)@kubelet/sock" in found["configuration.yaml"]
    left = reasons(manifest)
    assert left["programs/missing.txt"] == "is not installed"
    assert left["logs/kernel.txt"].endswith("kmsg: No such file or directory")
    assert "system/nvidia-driver-version.txt" in left
    for entry in manifest["files"]:
        content = found[entry["name"]].encode()
        assert (entry["bytes"], entry["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
    by_name = {entry["name"]: entry for entry in manifest["files"]}
    assert set(by_name) == set(found) - {"MANIFEST.json"}
    assert (by_name["programs/tells.txt"]["secrets_removed"], by_name["programs/tells.txt"]["note"]) == (
        1,
        "exit code 3",
    )
    assert (tmp_path / "x.tar.gz").stat().st_size < 200_000
    assert stat.S_IMODE((tmp_path / "x.tar.gz").stat().st_mode) == 0o600
    assert not list(tmp_path.glob(".commwatch-*"))
    assert "bundle written to" in capsys.readouterr().err


def test_the_documentation_names_every_file() -> None:
    """Those of the programs and of the others that a bundle can have."""
    text = (ROOT / "docs/using/diagnose.md").read_text()
    names = DOCUMENTS | TOPOLOGY | {f"programs/{one.name}.txt" for one in bundle_machine.PROGRAMS}

    assert [name for name in sorted(names) if f"`{name}`" not in text] == []


def test_a_simulated_node_has_nothing_of_the_machine(tmp_path: Path, config: Config) -> None:
    """No program is run and no file read; the manifest says so, and whose it is."""
    found, manifest = bundle(tmp_path, config, faulty(simulated="h100x8", maintenance="drill"))

    assert set(found) == DOCUMENTS
    assert manifest["simulated"] == "h100x8"
    assert manifest["host"] == "simulated node h100x8"
    assert "simulated" in reasons(manifest)["system/, programs/ and logs/"]


def test_the_driver_is_left_alone_where_that_matters() -> None:
    """While the daemon is paused for someone who needs the driver, and while a process hangs in it already."""
    calm, paused = known_of(faulty()), known_of(faulty(maintenance="driver upgrade"))
    stuck = known_of(faulty(), {("commwatch_worker_stuck", ("nvml",)): 1})
    at_a_file = known_of(faulty(), {("commwatch_worker_stuck", ("jobs",)): 1})

    assert why_driver_is_left_alone(calm) == why_driver_is_left_alone(at_a_file) == ""
    assert why_driver_is_left_alone(paused) == "the daemon is paused (driver upgrade), so that the driver is free"
    assert why_driver_is_left_alone(stuck) == "a process of the daemon is stuck in the driver already"


def test_a_driver_that_the_topology_waited_for_is_not_asked_again(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child of commwatch is stuck in it already; the PCIe tree is there all the same."""
    node = build_topology(SysfsFacts((), (), None, ()), DriverFacts(note="deadline: no answer in 2 s"))
    monkeypatch.setattr("commwatch.workers.by_hand.read_topology", lambda _: (node, ()))

    def absent(command: tuple[str, ...], *_: object) -> Answer:
        raise NoAnswer(command[0], missing=True)

    monkeypatch.setattr(bundle_machine, "run_program", absent)
    found = list(bundle_machine.machine_pieces(config, known_of(faulty()), lambda _: None))

    left = {one.name: one.reason for one in found if isinstance(one, LeftOut)}
    assert left["programs/nvidia-smi-q.txt"].startswith("the driver did not answer just now: deadline")
    assert "topology.txt" in {one.name for one in found if isinstance(one, Piece)}


def test_a_silent_driver_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each further program would hang in it too; those of other drivers are run."""
    asked: list[str] = []

    def run(command: tuple[str, ...], *_: object) -> Answer:
        asked.append(command[1])
        if command[1] == "silent":
            raise NoAnswer("x gave no answer in 1 s and is left alone")
        return Answer(0, "fine")

    monkeypatch.setattr(bundle_machine, "run_program", run)
    programs = [Program(name, ("x", name), 1.0, opens) for name, opens in (
        ("silent", "NVIDIA"), ("next", "NVIDIA"), ("rdma", "RDMA"), ("plain", ""),
    )]  # fmt: skip
    found = list(bundle_machine.program_pieces(programs, "", lambda _: None))

    assert asked == ["silent", "rdma", "plain"]
    assert [one.reason for one in found if isinstance(one, LeftOut)] == [
        "x gave no answer in 1 s and is left alone", "x gave no answer before"]  # fmt: skip


def test_the_kernel_log_gives_lines_of_interest_alone() -> None:
    """Of GPUs, PCIe and adapters, from the kernel itself, without the name of the program that ran."""
    from commwatch.diagnosis.kernel_lines import lines_of_interest

    class Log:
        def __init__(self) -> None:
            self.records = [
                b"3,1,1500000,-;NVRM: Xid (PCI:0000:17:00): 79, pid=41, name=my_model, GPU has fallen off the bus.\n",
                b"3,8,1600000,-;NVRM: Xid (PCI:0000:17:00): 31, pid=41, name=my, mo,del, Ch 00000008, intr 0\n",
                b"3,9,1700000,-;NVRM: Xid (PCI:0000:17:00): 31, pid=41, name=python3, Ch 00000008, intr 0\n",
                b"6,2,2500000,-;usb 1-1: new high-speed USB device\n",
                b"14,3,3500000,-;NVRM: written by a program, password of mine\n",
                b"4,4,4500000,-;mlx5_core 0000:18:00.0: Port module event\n",
                b"4,5,5500000,-;pcieport 0000:16:00.0: AER: Corrected error\n",
                b"6,6,6500000,-;my_model[41]: segfault at 8 ip 7f00 sp 7f10 error 4 in libnvidia-nvvm.so.4[7f,7e+10]\n",
                b"6,7,7500000,-;traps: my_nvidia_model[41] trap divide error ip:40 sp:7f in my_model[7a,40+1]\n",
            ]

        def read(self) -> bytes | None:
            """The next record."""
            return self.records.pop(0) if self.records else None

        def close(self) -> None:
            """Nothing is held."""

    assert list(lines_of_interest(Log())) == [
        "[      1.500000] NVRM: Xid (PCI:0000:17:00): 79, pid=41, name=(left out), GPU has fallen off the bus.",
        "[      1.600000] NVRM: Xid (PCI:0000:17:00): 31, pid=41, name=(left out), Ch 00000008, intr 0",
        "[      1.700000] NVRM: Xid (PCI:0000:17:00): 31, pid=41, name=(left out), Ch 00000008, intr 0",
        "[      4.500000] mlx5_core 0000:18:00.0: Port module event",
        "[      5.500000] pcieport 0000:16:00.0: AER: Corrected error",
        "[      6.500000] (left out)[41]: segfault at 8 ip 7f00 sp 7f10 error 4 in libnvidia-nvvm.so.4[7f,7e+10]",
        "[      7.500000] traps: (left out)[41] trap divide error ip:40 sp:7f in (left out)[7a,40+1]",
    ]


def test_lspci_gives_gpus_adapters_and_bridges() -> None:
    """Blocks of other devices are left out; text of another form stays whole."""
    blocks = [
        "0000:17:00.0 3D controller [0302]: NVIDIA [10de:2330] (rev a1)\n\tLnkSta: Speed 32GT/s",
        "0000:18:00.0 Infiniband controller [0207]: Mellanox [15b3:1021]",
        "0000:16:00.0 PCI bridge [0604]: Broadcom [1000:c030]",
        "0000:c0:00.0 Bridge [0680]: NVIDIA [10de:22a3]",
        "0000:01:00.0 Non-Volatile memory controller [0108]: Samsung [144d:a80a]\n\tSerial: 1",
    ]
    kept = bundle_machine.gpus_adapters_and_bridges("\n\n".join(blocks) + "\n")

    assert kept == "\n\n".join(blocks[:4]) + "\n"
    assert bundle_machine.gpus_adapters_and_bridges("lspci: cannot open /proc\n") == "lspci: cannot open /proc\n"


def test_hostile_names_stay_within_the_folder() -> None:
    """A host name that leads elsewhere, and names of parts with every character there is."""
    stream = io.BytesIO()
    piece = Piece(name="diagnosis.txt", source=HOSTILE, text="\ud800" + HOSTILE)
    write_bundle(
        stream, [piece], [LeftOut("x", HOSTILE, f"TOKEN={SECRET}")],
        host=f"{HOSTILE}\n\x1b", version="1", simulated=None, now=1.79e9,
    )  # fmt: skip
    stream.seek(0)
    with tarfile.open(fileobj=stream) as archive:
        assert [member.name.count("/") for member in archive] == [1, 1]
        assert not any(member.name.startswith((".", "/")) for member in archive)
        assert all(member.isreg() and member.uid == 0 and not member.uname for member in archive)
        manifest = archive.extractfile(archive.getnames()[0])
        assert manifest is not None
        assert SECRET not in manifest.read().decode()


def test_hostile_parts_do_no_harm(tmp_path: Path, config: Config) -> None:
    """They stand in the documents, escaped as each form wants it."""
    document = faulty(simulated="x", maintenance="x", findings=(finding(component=component(name='"<b>\x1b\n')),))
    found, _ = bundle(tmp_path, config, document)

    assert json.loads(found["diagnosis.json"])["findings"][0]["component"]["name"] == '"<b>\x1b\n'
    assert "\x1b" not in found["diagnosis.txt"]
    assert "<b>\x1b" not in found["report.html"]


def test_the_report_has_the_permissions_of_any_output(tmp_path: Path) -> None:
    """It is made to be sent; the umask decides."""
    args = argparse.Namespace(report=tmp_path / "x.html", bundle=None, log=None)
    diagnose_command.write_files(args, Config(), known_of(faulty()), faulty())
    (tmp_path / "plain").write_text("x")

    assert (tmp_path / "x.html").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert "Warning: " in (tmp_path / "x.html").read_text()
