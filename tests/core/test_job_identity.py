"""Which job or pod is on a GPU: from the text of a cgroup to the label on the page, where it is asked for."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.config.settings import Config, Jobs
from commwatch.config.yaml_file import load_config
from commwatch.errors import ConfigError
from commwatch.jobs.settings.owner import OwnedProcesses, Owner, owner_of, read_owners
from commwatch.jobs.settings.plan import JobSettings
from commwatch.jobs.settings.records import AuditOrder, AuditRecord
from commwatch.jobs.settings.source import NcclSettingsSource
from commwatch.node.run import Collected
from commwatch.node.store import Store
from support.core import SLOTS
from support.fed_daemon import FedDaemon
from support.passes import in_one_pass
from support.processes import ProcessTable

MOST_OWNERS = 8
UID = "0f3c2a11-9d7e-4b0a-8c55-1234567890ab"
UNDERSCORED = UID.replace("-", "_")
STATIC = Owner("kubernetes", "4d6a0a3a26d8f9c4e5c0ffee12345678")
SLURM, POD = Owner("slurm", "4711"), Owner("kubernetes", UID)


@in_one_pass(
    "cgroup, owner",
    [
        ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0", SLURM),
        ("0::/system.slice/gpu-7_slurmstepd.scope/job_4711/step_batch/user/task_special", SLURM),
        ("0::/../../system.slice/slurmstepd.scope/job_4711/step_extern", SLURM),
        ("5:cpuset:/slurm/uid_1000/job_4711/step_0\n1:name=systemd:/system.slice/slurmd.service", SLURM),
        ("9:memory:/slurm_gpu-7/uid_1000/job_4711/step_0/task_1", SLURM),
        (f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice/cri-1.scope", POD),
        (f"0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/crio-2.scope/container", POD),
        (f"11:devices:/kubepods/besteffort/pod{UID}/0123456789abcdef", POD),
        (f"0::/kubepods/pod{UID}/0123456789abcdef", POD),
        (f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UNDERSCORED}.slice/cri-3.scope", POD),
        (f"0::/kubepods/burstable/pod{STATIC.job}/c", STATIC),
        (f"0::/kubepods/pod{UID}/c/system.slice/slurmstepd.scope/job_4711/step_0", SLURM),
        ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/slurmstepd.scope/job_1", SLURM),
        ("0::/user.slice/user-1000.slice/session-3.scope", None),
        ("0::/system.slice/slurmstepd.scope/system", None),
        ("0::/system.slice/job_4711", None),
        ("0::/system.slice/slurmstepd.scope/job_47x", None),
        ("0::/system.slice/slurmstepd.scope/job_12345678901", None),
        ("0::/kubepods/podnot-a-uid/c", None),
        ("", None),
    ],
)  # fmt: skip
def test_the_owner_of_a_cgroup(cgroup: str, owner: Owner | None) -> None:
    """Of cgroup v1 and v2, the drivers systemd and cgroupfs, and of nodes that are themselves pods."""
    assert owner_of(cgroup) == owner


@given(st.text(alphabet="/job_4711podkubes.liceurmtf0123-\n", max_size=200))
def test_a_label_is_short_and_plain_whatever_a_cgroup_is_called(text: str) -> None:
    """Digits, or a UID: nothing that a user writes gets on the page."""
    for cgroup in (text, f"0::/slurmstepd.scope/job_{text}", f"0::/kubepods/pod{text}", f"0::/slurm/uid_1/job_{text}"):
        owner = owner_of(cgroup)
        if owner is not None:
            assert len(owner.job) <= 36
            assert set(owner.job) <= set("0123456789abcdef-")


def test_processes_that_are_nobodys_or_have_ended_are_left_out(tmp_path: Path) -> None:
    """The others stand together by owner."""
    cgroups = {11: "0::/slurmstepd.scope/job_4711/step_0", 12: "0::/init.scope", 14: f"0::/kubepods/pod{UID}/c"}
    for pid, cgroup in cgroups.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / f"{pid}/cgroup").write_text(cgroup)
    (tmp_path / "15").mkdir()
    (tmp_path / "15/cgroup").symlink_to(tmp_path / "11/cgroup")  # the kernel makes no such file

    found = read_owners([14, 11, 12, 13, 15], tmp_path)

    assert found == (OwnedProcesses(SLURM, (11,)), OwnedProcesses(POD, (14,)))


@pytest.mark.parametrize("identity", [False, True])
def test_an_audit_names_owners_only_where_it_is_ordered_to(tmp_path: Path, identity: bool) -> None:
    """Without the setting the file is not even opened."""
    table = ProcessTable(tmp_path / "proc")
    table.add(11)
    (table.root / "11/cgroup").write_text("0::/system.slice/slurmstepd.scope/job_4711/step_0\n")
    settings = JobSettings(Store(), lambda: (), lambda _: None, identity=identity)
    ordered = msgspec.json.decode(settings.order(), type=AuditOrder)
    order = msgspec.json.encode(msgspec.structs.replace(ordered, pids=(11,)))
    source = NcclSettingsSource(order, tmp_path / "sys", table.root)
    source.open(lambda device: None, frozenset(), None)

    audit = source.collect("nccl_settings").audit
    assert audit is not None
    found = msgspec.json.decode(audit, type=AuditRecord)

    assert found.owners == ((OwnedProcesses(SLURM, (11,)),) if identity else ())
    assert (b"4711" in audit) is identity


class Node(FedDaemon):
    """Two GPUs whose processes and owners a test sets."""

    def __init__(self, folder: Path, patched: pytest.MonkeyPatch) -> None:
        super().__init__(folder, patched, Config(jobs=Jobs(identity=True)))
        self.feed("nvml_identity", {
            slot: {("commwatch_gpu_info", (str(index), slot, f"GPU-{slot}", "1", "H100", "hopper")): 1}
            for index, slot in enumerate(SLOTS)
        })  # fmt: skip

    def list(self, *occupants: tuple[int, ...] | None) -> None:
        """The collector of processes runs; None: a GPU does not answer."""
        here = {slot: pids for slot, pids in zip(SLOTS, occupants, strict=True) if pids is not None}
        blocks = {
            slot: self.block({("commwatch_gpu_compute_processes", (str(index), slot)): len(here.get(slot, ()))})
            for index, slot in enumerate(SLOTS)
        }
        self.feed("nvml_processes", Collected(blocks, [], 0.0, occupants=here))

    def audit(self, *owners: OwnedProcesses) -> None:
        """The audit ends."""
        self.end(msgspec.json.encode(AuditRecord(owners=owners)))

    def end(self, audit: bytes) -> None:
        """The audit ends with this."""
        self.feed("nccl_settings", Collected({}, [], 0.1, audit=audit))

    def exposed(self) -> set[tuple[str, ...]]:
        """Labels of the series."""
        found = self.series("gpu_job_info")
        assert set(found.values()) <= {1}
        return set(found)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


def test_each_gpu_has_the_owners_of_its_own_processes(node: Node) -> None:
    """One series for each, whatever number of processes it has there; gone with the last of them."""
    node.list((11, 12), (14, 15))
    assert node.exposed() == set()

    node.audit(OwnedProcesses(SLURM, (11, 12, 14)), OwnedProcesses(POD, (15,)))
    first, second = ("0", SLOTS[0]), ("1", SLOTS[1])
    assert node.exposed() == {(*first, "slurm", "4711"), (*second, "slurm", "4711"), (*second, "kubernetes", UID)}

    node.list((11,), (15,))
    assert node.exposed() == {(*first, "slurm", "4711"), (*second, "kubernetes", UID)}
    node.list((), None)
    assert node.exposed() == set()


def test_a_process_that_came_later_has_no_owner_before_the_next_audit(node: Node) -> None:
    """Nor has one of an earlier audit one after it: numbers of processes are used again."""
    node.list((11,), ())
    node.audit(OwnedProcesses(SLURM, (11,)))
    node.list((16,), ())
    assert node.exposed() == set()

    node.audit(OwnedProcesses(Owner("slurm", "4712"), (16,)))
    assert {labels[3] for labels in node.exposed()} == {"4712"}
    node.audit()
    assert node.exposed() == set()


def test_the_owners_of_one_gpu_are_bounded(node: Node) -> None:
    """However many share it."""
    node.list(tuple(range(100, 200)), ())
    node.audit(*(OwnedProcesses(Owner("slurm", str(pid)), (pid,)) for pid in range(100, 200)))

    assert len(node.exposed()) == MOST_OWNERS


@pytest.mark.parametrize(
    "audit", [b"{", b'{"read":0,"owners":[{"owner":{"scheduler":"slurm","job":"4\\n7"},"pids":[11]}]}']
)
def test_what_no_audit_says_is_not_shown(node: Node, audit: bytes) -> None:
    """Whatever became of the process that reads what jobs wrote, its words get on no page and end no run."""
    node.list((11,), ())
    node.end(audit)

    assert node.exposed() == set()


def test_nobody_is_named_unless_the_configuration_says_so(tmp_path: Path) -> None:
    """Off by default, also with metrics.profile: all; and without what looks at the processes it is an error."""
    assert Config().jobs.identity is False
    file = tmp_path / "commwatch.yaml"
    file.write_text("metrics: {profile: all}\n")
    assert load_config(file).jobs.identity is False

    file.write_text("jobs: {identity: true}\nsources: {nccl_settings: {enabled: false}}\n")
    with pytest.raises(ConfigError, match="jobs: identity needs the source nccl_settings"):
        load_config(file)
