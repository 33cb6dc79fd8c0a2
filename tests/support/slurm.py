"""A real Slurm on one machine: slurmctld and munge beside the bridge, a slurmd in each node's network namespace."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from support.namespaces import Nodes, ip
from support.waiting import until

CONTROLLER = "10.77.0.254"
_PORT = 26817


class Slurm:
    """Nodes gpu0, gpu1, ... of a partition, below two leaf switches; commands run in the namespace of the bridge."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.folder = Path(tempfile.mkdtemp(prefix="commwatch-slurm-"))
        self._conf = self.folder / "slurm.conf"
        self._socket = self.folder / "munge.socket"
        self._inside = [f"--net=/run/netns/{nodes.bridge}"]

    @property
    def names(self) -> list[str]:
        """Of the nodes."""
        return [f"gpu{node}" for node in range(self._nodes.count)]

    @property
    def state(self) -> Path:
        """The state directory as each node sees it."""
        return self.folder / "commwatch"

    def state_of(self, node: int) -> Path:
        """That of one node."""
        return self.folder / f"commwatch-{self.names[node]}"

    @contextmanager
    def running(self) -> Iterator[Slurm]:
        """Start all of it, wait until the nodes are idle, and end it."""
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self._write()
            ip("-n", self._nodes.bridge, "address", "add", f"{CONTROLLER}/24", "dev", "bridge")
            ip("-n", self._nodes.bridge, "link", "set", "lo", "up")
            for number, command in enumerate(self._daemons()):
                process = subprocess.Popen(
                    command, env=self._environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    cwd=self.folder, start_new_session=True,
                )  # fmt: skip
                stack.callback(process.wait)
                stack.callback(process.terminate)
                if not number:
                    until(self._socket.exists)
            until(
                lambda: (
                    self.run("sinfo", "--noheader", "--Node", "--states=idle", "--format=%N").stdout.split()
                    == self.names
                ),
                describe=lambda: self.run("sinfo", "--Node", "--long").stdout + self._logs(),
            )
            yield self

    def _write(self) -> None:
        self.folder.chmod(0o755)
        states = [self.state, *(self.state_of(node) for node in range(self._nodes.count))]
        for folder in (self.folder / "state", self.folder / "log", *states):
            folder.mkdir()
        hosts = "".join(f"{self._nodes.address(node)} {name}\n" for node, name in enumerate(self.names))
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        nodes = "".join(
            f"NodeName={name} NodeHostname={name} NodeAddr={self._nodes.address(node)} Port={_PORT + 2 + node} "
            "CPUs=1 RealMemory=100 State=UNKNOWN\n"
            for node, name in enumerate(self.names)
        )
        half = len(self.names) // 2
        leaves = (self.names[:half], self.names[half:])
        topology = "".join(f"SwitchName=leaf{place} Nodes={','.join(of)}\n" for place, of in enumerate(leaves) if of)
        (self.folder / "topology.conf").write_text(f"{topology}SwitchName=spine Switches=leaf[0-1]\n")
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nIgnoreSystemd=yes\n")
        self._conf.write_text(f"""\
ClusterName=test
SlurmctldHost={os.uname().nodename}({CONTROLLER})
SlurmctldPort={_PORT}
SrunPortRange=60001-60100
AuthType=auth/munge
AuthInfo=socket={self._socket}
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool-%n
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/slurmd-%n.pid
SlurmctldLogFile={self.folder}/log/slurmctld
SlurmdLogFile={self.folder}/log/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/linear
TopologyPlugin=topology/tree
MpiDefault=none
ReturnToService=2
SchedulerType=sched/builtin
{nodes}PartitionName=all Nodes={",".join(self.names)} Default=YES State=UP
""")

    def _daemons(self) -> Iterator[list[str]]:
        yield [
            "/usr/sbin/munged", "--foreground", "--force", f"--socket={self._socket}",
            f"--key-file={self.folder}/munge.key", f"--log-file={self.folder}/log/munge",
            f"--pid-file={self.folder}/munge.pid", f"--seed-file={self.folder}/munge.seed",
        ]  # fmt: skip
        yield ["nsenter", *self._inside, "/usr/sbin/slurmctld", "-D", "-f", str(self._conf)]
        for node, name in enumerate(self.names):
            # Not ip netns exec: that mounts a new /sys, in which slurmd finds no cgroups.
            network = f"--net=/run/netns/{self._nodes.namespace(node)}"
            yield [
                "nsenter", network, "unshare", "--uts", "--mount", "bash", "-ec",
                f"hostname {name}; mount --bind {self.folder}/hosts /etc/hosts; "
                f"mount --bind {self.state_of(node)} {self.state}; exec /usr/sbin/slurmd -D -N {name} -f {self._conf}",
            ]  # fmt: skip

    def _environment(self) -> dict[str, str]:
        path = f"{os.environ['PATH']}:/usr/sbin:/usr/bin:/sbin:/bin"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        return {**kept, "PATH": path, "SLURM_CONF": str(self._conf)}

    def _logs(self) -> str:
        return "".join(file.read_text(errors="replace")[-2000:] for file in sorted((self.folder / "log").iterdir()))

    def run(self, *command: str | Path, more: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run one of its commands."""
        return subprocess.run(
            ["nsenter", *self._inside, *map(str, command)], env={**self._environment(), **(more or {})},
            cwd=self.folder, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
