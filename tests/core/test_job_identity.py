"""Which job or pod is on a GPU: from the text of a cgroup to the label on the page, where it is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.config.settings import Config, Jobs
from commwatch.config.yaml_file import load_config
from commwatch.errors import ConfigError
from commwatch.jobs.settings.records import AuditOrder
from commwatch.node.run import Collected
from support.core import SLOTS
from support.examples import examples
from support.fed_daemon import FedDaemon
from support.processes import ProcessTable
from support.sources import source_of

MOST_OWNERS = 8
UID = "0f3c2a11-9d7e-4b0a-8c55-1234567890ab"
UNDERSCORED = UID.replace("-", "_")
Owner = tuple[str, str]
"""Scheduler, and number of the job or UID of the pod."""
STATIC = ("kubernetes", "4d6a0a3a26d8f9c4e5c0ffee12345678")
SLURM, POD = ("slurm", "4711"), ("kubernetes", UID)


def owners_of(folder: Path, cgroups: Iterable[str], *, identity: bool = True) -> dict[Owner, list[int]]:
    """Which processes an audit says each owner has, of those in these cgroups, numbered from 0."""
    table = ProcessTable(folder / "proc")
    pids = list(range(100, 100 + len(cgroups := list(cgroups))))
    for pid, cgroup in zip(pids, cgroups, strict=True):
        table.add(pid)
        (table.root / f"{pid}/cgroup").write_text(cgroup)
    order = msgspec.json.encode(AuditOrder((*pids, 99), identity=identity))
    audit = source_of("nccl_settings", folder / "sys", table.root, resume=order).collect("nccl_settings").audit
    assert audit is not None
    found = {
        (one["owner"]["scheduler"], one["owner"]["job"]): one["pids"] for one in msgspec.json.decode(audit)["owners"]
    }
    return {owner: [pid - 100 for pid in these] for owner, these in found.items()}


CGROUPS: list[tuple[str, Owner | None]] = [
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
        (f"0::/kubepods/burstable/pod{STATIC[1]}/c", STATIC),
        (f"0::/kubepods/pod{UID}/c/system.slice/slurmstepd.scope/job_4711/step_0", SLURM),
        ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/slurmstepd.scope/job_1", SLURM),
        ("0::/user.slice/user-1000.slice/session-3.scope", None),
        ("0::/system.slice/slurmstepd.scope/system", None),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/slurmstepd.scope/job_4711/x", None),
        (f"0::/../../user.slice/user-1000.slice/user@1000.service/kubepods/pod{UID}/c", None),
        ("1:name=systemd:/user.slice/user-1000.slice/job_1\n2:cpuset:/slurm/uid_1000/job_4711/step_extern", SLURM),
        ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user.slice/x", SLURM),
        ("0::/system.slice/job_4711", None),
        ("0::/system.slice/slurmstepd.scope/job_47x", None),
        ("0::/system.slice/slurmstepd.scope/job_12345678901", None),
        ("0::/kubepods/podnot-a-uid/c", None),
        ("", None),
]  # fmt: skip


def test_the_owner_of_a_cgroup(tmp_path: Path) -> None:
    """Of cgroup v1 and v2, the drivers systemd and cgroupfs, and of nodes that are themselves pods; of some nobody."""
    found = owners_of(tmp_path, [cgroup for cgroup, _ in CGROUPS])

    named = {pid: owner for owner, pids in found.items() for pid in pids}
    assert [(cgroup, named.get(pid)) for pid, (cgroup, _) in enumerate(CGROUPS)] == CGROUPS


@examples(60, one_fixture=True)
@given(st.text(alphabet="/job_4711podkubes.liceurmtf0123-\n", max_size=200))
def test_a_label_is_short_and_plain_whatever_a_cgroup_is_called(tmp_path: Path, text: str) -> None:
    """Digits, or a UID: nothing that a user writes gets on the page."""
    heads = ("", "0::/slurmstepd.scope/job_", "0::/kubepods/pod", "0::/slurm/uid_1/job_")
    for _, job in owners_of(tmp_path, [head + text for head in heads]):
        assert len(job) <= 36
        assert set(job) <= set("0123456789abcdef-")


def test_a_link_in_the_place_of_a_cgroup_is_not_followed(tmp_path: Path) -> None:
    """The kernel makes no such file."""
    owners_of(tmp_path, ["0::/slurmstepd.scope/job_4711/step_0"])
    other = tmp_path / "other"
    table = other / "proc/100"
    table.mkdir(parents=True)
    (table / "cgroup").symlink_to(tmp_path / "proc/100/cgroup")
    (table / "environ").write_text("NCCL_DEBUG=WARN\0")
    order = msgspec.json.encode(AuditOrder((100,), identity=True))

    audit = source_of("nccl_settings", other / "sys", other / "proc", resume=order).collect("nccl_settings").audit

    assert audit is not None
    assert msgspec.json.decode(audit)["owners"] == []


@pytest.mark.parametrize("identity", [False, True])
def test_an_audit_names_owners_only_where_it_is_ordered_to(tmp_path: Path, identity: bool) -> None:
    """Without the setting the file is not even opened."""
    found = owners_of(tmp_path, ["0::/system.slice/slurmstepd.scope/job_4711/step_0\n"], identity=identity)

    assert found == ({SLURM: [0]} if identity else {})


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

    def audit(self, *owners: tuple[Owner, tuple[int, ...]]) -> None:
        """The audit ends."""
        named = [{"owner": {"scheduler": one[0], "job": one[1]}, "pids": pids} for one, pids in owners]
        self.end(msgspec.json.encode({"owners": named}))

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

    node.audit((SLURM, (11, 12, 14)), (POD, (15,)))
    first, second = ("0", SLOTS[0]), ("1", SLOTS[1])
    assert node.exposed() == {(*first, "slurm", "4711"), (*second, "slurm", "4711"), (*second, "kubernetes", UID)}

    node.list((11,), (15,))
    assert node.exposed() == {(*first, "slurm", "4711"), (*second, "kubernetes", UID)}
    node.list((), None)
    assert node.exposed() == set()


def test_a_process_that_came_later_has_no_owner_before_the_next_audit(node: Node) -> None:
    """Nor has one of an earlier audit one after it: numbers of processes are used again."""
    node.list((11,), ())
    node.audit((SLURM, (11,)))
    node.list((16,), ())
    assert node.exposed() == set()

    node.audit((("slurm", "4712"), (16,)))
    assert {labels[3] for labels in node.exposed()} == {"4712"}
    node.audit()
    assert node.exposed() == set()


def test_the_owners_of_one_gpu_are_bounded(node: Node) -> None:
    """However many share it."""
    node.list(tuple(range(100, 200)), ())
    node.audit(*((("slurm", str(pid)), (pid,)) for pid in range(100, 200)))

    assert len(node.exposed()) == MOST_OWNERS


@pytest.mark.parametrize(
    "audit", [b"{", b'{"read":0,"owners":[{"owner":{"scheduler":"slurm","job":"4\\n7"},"pids":[11]}]}']
)
def test_what_no_audit_says_is_not_shown(node: Node, audit: bytes) -> None:
    """Whatever became of the process that reads what jobs wrote, its words get on no page and end no run."""
    node.list((11,), ())
    node.end(audit)

    assert node.exposed() == set()


@pytest.mark.parametrize("identity", [False, True])
def test_owners_are_asked_for_where_the_configuration_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, identity: bool
) -> None:
    """The order that the worker gets."""
    settings = FedDaemon(tmp_path, monkeypatch, Config(jobs=Jobs(identity=identity))).engine.job_settings

    assert msgspec.json.decode(settings.order(), type=AuditOrder).identity is identity


def test_nobody_is_named_unless_the_configuration_says_so(tmp_path: Path) -> None:
    """Off by default, also with metrics.profile: all; and without what looks at the processes it is an error."""
    assert Config().jobs.identity is False
    file = tmp_path / "commwatch.yaml"
    file.write_text("metrics: {profile: all}\n")
    assert load_config(file).jobs.identity is False

    file.write_text("jobs: {identity: true}\nsources: {nccl_settings: {enabled: false}}\n")
    with pytest.raises(ConfigError, match="jobs: identity needs the source nccl_settings"):
        load_config(file)
