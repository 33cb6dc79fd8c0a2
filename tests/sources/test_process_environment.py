"""Settings of processes read from the real /proc, and from trees that look like it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commwatch.jobs.settings.facts import ProcessSettings
from commwatch.jobs.settings.process_environment import (
    read_process_settings,
    settings_of_environment,
    settings_of_file,
)
from commwatch.jobs.settings.records import UnreadProcess
from commwatch.jobs.settings.variables import known_variables
from support.examples import examples

KNOWN = known_variables()


# --- the real /proc ---


@contextmanager
def running(environment: dict[str, str], folder: Path) -> Iterator[int]:
    """A process of our own that has started, and its id."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", "import sys; print('ready', flush=True); sys.stdin.read()"],
        env=environment, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(10)


def values(process: ProcessSettings) -> dict[str, str | None]:
    return {one.name: one.value for one in process.settings}


def test_the_settings_of_a_real_process_are_read_and_nothing_else(tmp_path: Path) -> None:
    """Two ranks of a job: names that are wanted, rank and job; no trace of a secret of theirs."""
    (tmp_path / "my.conf").write_text("NCCL_PROTO=LL\nNCCL_DEBUG=INFO\n")
    environment = {
        "NCCL_DEBUG": "WARN", "NCCL_CONF_FILE": "my.conf", "NCCL_PSK": "k" * 40, "AWS_SECRET": "not-to-be-kept",
        "MASTER_ADDR": "node7", "MASTER_PORT": "29500", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8",
    }  # fmt: skip
    with (
        running({**environment, "RANK": "0"}, tmp_path) as first,
        running({**environment, "RANK": "1"}, tmp_path) as second,
    ):
        reading = read_process_settings([second, first, first], KNOWN)

    one, other = reading.processes
    assert reading.unread == ()
    assert {one.pid, other.pid} == {first, second}
    kept = {name: value for name, value in values(one).items() if name not in ("NCCL_ALGO",)}
    assert kept == {"NCCL_DEBUG": "WARN", "NCCL_CONF_FILE": "my.conf", "NCCL_PSK": None, "NCCL_PROTO": "LL"}
    assert [(setting.name, setting.origin) for setting in one.shadowed] == [("NCCL_DEBUG", "conf_file")]
    assert {one.rank, other.rank} == {"0", "1"}
    assert one.job
    assert one.job == other.job
    assert one.single_node is False
    assert (one.interfaces, one.nccl_version, one.missing_files) == (None, None, frozenset())
    assert one.network_namespace.startswith("net:[")
    assert "node7" not in repr(reading)
    assert "WARN" not in repr(reading)


SEARCH = """
import re
import sys
from commwatch.jobs.settings.variables import known_variables
from commwatch.jobs.settings.process_environment import read_process_settings
from support.waiting import PATIENCE_SECONDS

known = known_variables()
(process,) = read_process_settings([int(sys.argv[1])], known).processes
print([(one.name, one.value) for one in process.settings])
# The value is never put together here: the pattern has brackets between its digits.
wanted = re.compile("".join(f"[{digit}]" for digit in reversed(sys.argv[2])).encode())
found = 0
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", buffering=0) as memory:
    regions = [line.split() for line in maps]
    for span, access, *rest in regions:
        if not access.startswith("rw") or rest[-1] == "[stack]":
            continue
        start, end = (int(part, 16) for part in span.split("-"))
        memory.seek(start)
        content = memory.read(end - start)
        found += sum(1 for _ in wanted.finditer(content))
        del content
print(found)
"""


def test_secrets_of_other_variables_do_not_stay_in_memory(tmp_path: Path) -> None:
    """A process that has read settings is searched byte by byte for the value of a variable that it read over."""
    secret = "".join(f"{place * 7919 % 9973:04d}" for place in range(12))
    with running({"NCCL_DEBUG": "WARN", "DATABASE_PASSWORD": secret, "NCCL_ALGO": "Ring"}, tmp_path) as pid:
        done = subprocess.run(
            [sys.executable, "-c", SEARCH, str(pid), secret[::-1]],
            env={"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            capture_output=True, text=True,
        )  # fmt: skip

    assert done.stderr == ""
    settings, found = done.stdout.splitlines()
    assert "NCCL_ALGO" in settings
    assert found == "0"


def test_a_process_without_any_environment_is_unread(tmp_path: Path) -> None:
    """Some programs write their title over it: that says nothing of what they were started with."""
    with running({}, tmp_path) as pid:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
        reading = read_process_settings([pid], KNOWN)

    if environ:  # the interpreter's own C library may set something before
        assert reading.unread == ()
    else:
        assert reading.unread == (UnreadProcess(pid, "overwritten"),)


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    """However many processes are read."""
    with running({"NCCL_DEBUG": "WARN"}, tmp_path) as pid:
        read_process_settings([pid], KNOWN)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            read_process_settings([pid, 2**22 - 1], KNOWN)

        assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become someone who may not look")
def test_processes_of_others_are_unread_without_permission(tmp_path: Path) -> None:
    """As nobody, a process of root cannot be looked at: it is counted, not taken for clean."""
    with running({"NCCL_IB_DISABLE": "1"}, tmp_path) as pid:
        child = os.fork()
        if child == 0:  # pragma: no cover - another process
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            reading = read_process_settings([pid], KNOWN)
            os._exit(0 if reading.unread == (UnreadProcess(pid, "no_permission"),) and not reading.processes else 1)
        _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0


# --- a tree like /proc ---


class Tree:
    """A process table with one process in a container: its root and working directory are its own."""

    def __init__(self, folder: Path, pid: int = 77) -> None:
        self.procfs, self.root, self.pid = folder / "proc", folder / "container", pid
        self.home = self.procfs / str(pid)
        (self.home / "ns").mkdir(parents=True)
        (self.root / "etc").mkdir(parents=True)
        (self.root / "work").mkdir()
        (self.home / "root").symlink_to(self.root)
        (self.home / "cwd").symlink_to(self.root / "work")
        (self.home / "status").write_text("Name:\tpython\nUid:\t101000\t0\t0\t0\n")
        (self.home / "uid_map").write_text("         0     100000      65536\n")
        (self.root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n")
        (self.procfs / "self/ns").mkdir(parents=True)
        (self.procfs / "self/ns/net").symlink_to("net:[1]")
        (self.home / "ns/net").symlink_to("net:[1]")
        self.environment(NCCL_DEBUG="WARN")

    def environment(self, **variables: str) -> None:
        self.raw(b"".join(f"{name}={value}\0".encode() for name, value in variables.items()))

    def raw(self, content: bytes) -> None:
        (self.home / "environ").write_bytes(content)

    def write(self, path: str, content: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)

    def read(self) -> ProcessSettings:
        (process,) = read_process_settings([self.pid], KNOWN, self.procfs).processes
        return process

    def origins(self) -> dict[str, tuple[str | None, str]]:
        return {one.name: (one.value, one.origin) for one in self.read().settings}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_process_that_has_ended_is_in_neither_list(tree: Tree) -> None:
    """There is nothing left to read. Where the table does not show the node's processes, it is hidden instead."""
    hidden = read_process_settings([78], KNOWN, tree.procfs)
    (tree.procfs / "2").mkdir()
    (tree.procfs / "2/comm").write_text("kthreadd\n")
    ended = read_process_settings([78], KNOWN, tree.procfs)

    assert (hidden.processes, hidden.unread) == ((), (UnreadProcess(78, "hidden"),))
    assert (ended.processes, ended.unread) == ((), ())


def test_files_are_those_that_the_process_sees_in_nccls_order(tree: Tree) -> None:
    """The home directory is that of its own user database, by the user that it is in its container."""
    tree.write("etc/nccl.conf", "NCCL_DEBUG=INFO\nNCCL_ALGO=Ring\nNCCL_PROTO=LL\n")
    tree.write("home/ann/.nccl.conf", "NCCL_PROTO=Simple\n")

    assert tree.origins() == {
        "NCCL_DEBUG": ("WARN", "environment"),
        "NCCL_PROTO": ("Simple", "home_file"),
        "NCCL_ALGO": ("Ring", "system_file"),
    }


def test_a_named_file_takes_the_place_of_the_one_at_home(tree: Tree) -> None:
    """And the system's is read all the same; relative paths begin at the working directory."""
    tree.environment(NCCL_CONF_FILE="../conf/a.conf")
    tree.write("home/ann/.nccl.conf", "NCCL_PROTO=Simple\n")
    tree.write("etc/nccl.conf", "NCCL_ALGO=Ring\n")
    tree.write("work/a.conf", "NCCL_BUFFSIZE=1\n")

    assert "NCCL_PROTO" not in tree.origins()
    assert tree.read().files_not_read == (("conf_file", "leads out of the working directory"),)
    tree.environment(NCCL_CONF_FILE="./a.conf")
    assert tree.origins()["NCCL_BUFFSIZE"] == ("1", "conf_file")
    assert tree.origins()["NCCL_ALGO"] == ("Ring", "system_file")
    tree.environment(NCCL_CONF_FILE="/no/such.conf")
    assert tree.read().missing_files == {"NCCL_CONF_FILE"}
    assert tree.read().files_not_read == ()


def test_a_user_of_a_directory_service_has_the_home_of_the_environment(tree: Tree) -> None:
    """Such users are not in /etc/passwd."""
    (tree.home / "status").write_text("Uid:\t104000\t0\t0\t0\n")
    tree.environment(HOME="/shared/bob")
    tree.write("shared/bob/.nccl.conf", "NCCL_PROTO=LL\n")

    assert tree.origins() == {"NCCL_PROTO": ("LL", "home_file")}


def test_links_never_lead_out_of_the_root_of_the_process(tree: Tree, tmp_path: Path) -> None:
    """Whoever made the container cannot have files of the node read."""
    (tmp_path / "secret.conf").write_text("NCCL_PROTO=LL\n")
    (tree.root / "etc/nccl.conf").symlink_to(tmp_path / "secret.conf")

    assert set(tree.origins()) == {"NCCL_DEBUG"}
    (tree.root / "etc/nccl.conf").unlink()
    (tree.root / "etc/nccl.conf").symlink_to("../../../../../../secret.conf")
    assert set(tree.origins()) == {"NCCL_DEBUG"}
    tree.write("opt/real.conf", "NCCL_PROTO=Simple\n")
    (tree.root / "etc/nccl.conf").unlink()
    (tree.root / "etc/nccl.conf").symlink_to("/opt/../opt/./real.conf")
    assert tree.origins()["NCCL_PROTO"] == ("Simple", "system_file")


def test_what_is_no_file_is_not_opened(tree: Tree) -> None:
    """A pipe would block forever, a loop of links never end, a directory says nothing."""
    path = tree.root / "etc/nccl.conf"
    os.mkfifo(path)
    assert tree.read().files_not_read == (("system_file", "no regular file"),)
    path.unlink()
    path.symlink_to("nccl.conf")
    assert [origin for origin, _ in tree.read().files_not_read] == ["system_file"]
    path.unlink()
    path.mkdir()
    assert tree.read().files_not_read == (("system_file", "no regular file"),)


def test_a_huge_file_is_read_in_part_and_said_to_be(tree: Tree) -> None:
    """Its first 64 KiB count."""
    tree.write("etc/nccl.conf", "NCCL_PROTO=LL\n" + "#" * 70_000 + "\nNCCL_ALGO=Ring\n")

    process = tree.read()

    assert "NCCL_PROTO" in values(process)
    assert "NCCL_ALGO" not in values(process)
    assert process.files_not_read == (("system_file", "longer than 64 KiB, the rest"),)


def test_malformed_lines_come_with_their_file(tree: Tree) -> None:
    """By number."""
    tree.write("etc/nccl.conf", "NCCL_PROTO=LL\nexport NCCL_ALGO=Ring\n")

    assert tree.read().malformed == (("system_file", 2),)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "overwritten"), (b"myprog: worker 3\0\0\0", "overwritten"), (b"A=b\0" * 2**20 + b"X", "too_long")],
)
def test_an_environment_that_tells_nothing_is_unread(tree: Tree, content: bytes, reason: str) -> None:
    """A title written over it, or more than the kernel can hold."""
    tree.raw(content)

    reading = read_process_settings([tree.pid], KNOWN, tree.procfs)

    assert [(one.pid, one.reason) for one in reading.unread] == [(tree.pid, reason)]
    assert reading.processes == ()


def test_a_process_in_another_network_namespace_has_its_own_interfaces(tree: Tree) -> None:
    """As its net/dev lists them."""
    (tree.home / "net").mkdir()
    (tree.home / "net/dev").write_text("Inter-| Receive\n face |bytes\n    lo: 0 0\n  eth0:12 0\n")

    assert tree.read().interfaces is None
    (tree.home / "ns/net").unlink()
    (tree.home / "ns/net").symlink_to("net:[2]")
    assert tree.read().interfaces == frozenset({"lo", "eth0"})


@pytest.mark.parametrize(
    ("library", "package", "version"),
    [
        ("/usr/lib/x86_64-linux-gnu/libnccl.so.2.27.3", "", (2, 27, 3)),
        ("/env/site-packages/nvidia/nccl/lib/libnccl.so.2", "nvidia_nccl_cu12-2.21.5.dist-info", (2, 21, 5)),
        ("/env/site-packages/nvidia/nccl/lib/libnccl.so.2", "nvidia_nccl_cu13-2.30.7.post1.dist-info", (2, 30, 7)),
        ("/env/site-packages/nvidia/nccl/lib/libnccl.so.2", "nvidia_nccl_ml_py-9.9.9.dist-info", None),
        ("/opt/lib/libnccl.so.2", "", None),
        ("/opt/lib/libnccl-net.so", "", None),
    ],
)
def test_the_version_is_that_of_the_library_that_is_loaded(
    tree: Tree, library: str, package: str, version: tuple[int, ...] | None
) -> None:
    """By the file's own name, or the Python package that it came in; else it is not known."""
    (tree.home / "maps").write_text(
        "00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/python3.11\n"
        f"7f2c00000000-7f2c10000000 r-xp 00000000 08:02 1  {library}\n"
    )
    (tree.root / "env/site-packages" / (package or "numpy")).mkdir(parents=True)

    assert tree.read().nccl_version == version


@pytest.mark.parametrize(
    ("variables", "rank", "single_node"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}, "3", True),
        ({"RANK": "3", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, "3", False),
        ({"SLURM_PROCID": "5", "SLURM_NNODES": "1"}, "5", True),
        ({"SLURM_PROCID": "5", "SLURM_NNODES": "4", "SLURM_STEP_NUM_NODES": "1"}, "5", True),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "1", False),
        ({"RANK": "x", "WORLD_SIZE": "9" * 30, "LOCAL_WORLD_SIZE": "1"}, "", None),
        ({}, "", None),
    ],
)
def test_launchers_say_rank_and_number_of_nodes(
    tree: Tree, variables: dict[str, str], rank: str, single_node: bool | None
) -> None:
    """torchrun, Slurm and Open MPI; nonsense says nothing."""
    tree.environment(NCCL_DEBUG="WARN", **variables)

    process = tree.read()

    assert (process.rank, process.single_node) == (rank, single_node)


def test_jobs_that_meet_at_localhost_are_told_apart_by_network_namespace(tmp_path: Path) -> None:
    """Two containers may both use localhost:29500; a process without rank has no job."""
    trees = [Tree(tmp_path / name) for name in ("a", "b")]
    (trees[1].home / "ns/net").unlink()
    (trees[1].home / "ns/net").symlink_to("net:[2]")
    for one in trees:
        one.environment(RANK="0", MASTER_ADDR="localhost", MASTER_PORT="29500")
    jobs = [one.read().job for one in trees]
    assert jobs[0] is not None
    assert jobs[0] != jobs[1]
    for one in trees:
        one.environment(RANK="0", MASTER_ADDR="node7", MASTER_PORT="29500")
    assert trees[0].read().job == trees[1].read().job
    trees[0].environment(MASTER_ADDR="node7", MASTER_PORT="29500")
    assert trees[0].read().job == ""


# --- given environments and files ---


def test_a_given_environment_finds_the_files_below_a_root(tmp_path: Path) -> None:
    """As a program that is started now would."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nccl.conf").write_text("NCCL_ALGO=Ring\n")
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.nccl.conf").write_text("NCCL_PROTO=LL\n")
    environment = {"NCCL_DEBUG": "WARN", "PATH": "/bin", "HOME": "/home"}

    process = settings_of_environment(environment, KNOWN, tmp_path)

    assert values(process) == {"NCCL_DEBUG": "WARN", "NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}
    assert process.pid is None
    elsewhere = environment | {"HOME": "/root"}
    assert "NCCL_PROTO" not in values(settings_of_environment(elsewhere, KNOWN, tmp_path))


def test_a_given_file_is_judged_alone(tmp_path: Path) -> None:
    """Whether it exists is the caller's to say."""
    path = tmp_path / "site.conf"
    path.write_text("NCCL_ALGO=Ring\nNCCL_PSK=secret\nexport NCCL_PROTO=LL\n")

    process = settings_of_file(path, KNOWN)

    assert values(process) == {"NCCL_ALGO": "Ring", "NCCL_PSK": None}
    assert process.malformed == (("conf_file", 3),)
    with pytest.raises(FileNotFoundError):
        settings_of_file(tmp_path / "none", KNOWN)


def test_a_given_file_that_is_too_long_is_not_clean(tmp_path: Path) -> None:
    """What stands behind its first 64 KiB was not read, and that is said."""
    path = tmp_path / "site.conf"
    path.write_text("#" * 65536 + "\nNCCL_ALGO=Ring\n")

    assert settings_of_file(path, KNOWN).files_not_read == (("conf_file", "longer than 64 KiB, the rest"),)


# --- the parser ---


def test_of_equal_names_the_first_counts(tree: Tree) -> None:
    """As for getenv; an entry without equals sign or without name is none."""
    tree.raw(b"NCCL_DEBUG=WARN\0NCCL_DEBUG=INFO\0NCCL_PROTO\0=x\0NCCL_ALGO=a=b")

    assert values(tree.read()) == {"NCCL_DEBUG": "WARN", "NCCL_ALGO": "a=b"}


@examples(60, one_fixture=True)
@given(st.lists(st.binary(max_size=30).filter(lambda one: b"\0" not in one), max_size=30))
def test_any_environment_is_read_and_only_what_is_wanted_kept(tree: Tree, entries: list[bytes]) -> None:
    """Bytes of any kind."""
    tree.raw(b"\0".join([*entries, b"NCCL_LAST=1", b""]))
    found = values(tree.read())

    assert found["NCCL_LAST"] == "1" or any(one.startswith(b"NCCL_LAST=") for one in entries)
    assert all(name.startswith(("NCCL_", "TORCH_", "CUDA_")) for name in found)
