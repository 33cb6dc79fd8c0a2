"""nccl.conf files as NCCL reads them, hostile ones too."""

from __future__ import annotations

import ctypes
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from analysis.nccl_settings.cases import HGX, KNOWN
from commwatch.jobs.settings.facts import ProcessSettings
from commwatch.jobs.settings.judge import judge_settings
from commwatch.jobs.settings.process_environment import settings_of_environment, settings_of_file
from commwatch.jobs.settings.values import read_number
from support.passes import in_one_pass


def parsed(content: bytes) -> ProcessSettings:
    with TemporaryDirectory() as folder:
        path = Path(folder, "nccl.conf")
        path.write_bytes(content)
        return settings_of_file(path, KNOWN)


def values(content: bytes) -> dict[str, str | None]:
    return {one.name: one.value for one in parsed(content).settings}


def test_lines_are_names_and_values() -> None:
    """The value is all behind the first equals sign; comments and what is not wanted are left out."""
    content = (
        b"# NCCL_DEBUG=INFO\n # NCCL_ALGO\nNCCL_DEBUG=WARN\n\nNCCL_SOCKET_IFNAME==ens1f0\nPATH=/bin\nNCCL_PROTO=\n"
    )

    assert values(content) == {"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "=ens1f0", "NCCL_PROTO": ""}
    assert parsed(content).malformed == ()


def test_the_first_line_of_a_name_counts() -> None:
    """NCCL does not set what is set."""
    assert values(b"NCCL_DEBUG=WARN\nNCCL_DEBUG=INFO") == {"NCCL_DEBUG": "WARN"}


@in_one_pass(
    "line", [b"export NCCL_DEBUG=WARN", b" NCCL_DEBUG=WARN", b"NCCL_DEBUG =WARN", b"NCCL_DEBUG", b"NCCL_DEBUG: WARN"]
)
def test_a_line_that_sets_another_name_than_was_meant_is_malformed(line: bytes) -> None:
    """Blanks and export become part of the name, which nothing reads."""
    assert parsed(b"NCCL_PROTO=LL\n" + line).malformed == (("conf_file", 2),)
    assert values(b"NCCL_PROTO=LL\n" + line) == {"NCCL_PROTO": "LL"}


def test_malformed_lines_and_unread_files_are_said() -> None:
    """With the number of the line, and why a file was not read."""
    process = ProcessSettings((), malformed=(("system_file", 3),), files_not_read=(("home_file", "permission denied"),))

    found = judge_settings([process], HGX, KNOWN)

    assert [(one.code, one.severity, one.variable) for one in found] == [
        ("malformed_line", "useless", "/etc/nccl.conf"),
        ("file_not_read", "note", "~/.nccl.conf"),
    ]
    assert "Line 3 " in found[0].words
    assert "permission denied" in found[1].words


def test_the_environment_comes_before_the_files_in_their_order(tmp_path: Path) -> None:
    """What is overridden with another value is told, with the origin that wins."""
    for path, content in (("home/.nccl.conf", "NCCL_DEBUG=INFO\nNCCL_PROTO=LL\n"),
                          ("etc/nccl.conf", "NCCL_PROTO=LL\nNCCL_ALGO=Ring\n")):  # fmt: skip
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text(content)

    process = settings_of_environment({"NCCL_DEBUG": "WARN", "NCCL_ALGO": "", "HOME": "/home"}, KNOWN, tmp_path)

    assert [(one.name, one.value, one.origin) for one in process.settings] == [
        ("NCCL_ALGO", "", "environment"),
        ("NCCL_DEBUG", "WARN", "environment"),
        ("NCCL_PROTO", "LL", "home_file"),
    ]
    shadowed = [(one.name, one.origin) for one in process.shadowed]
    assert shadowed == [("NCCL_DEBUG", "home_file"), ("NCCL_ALGO", "system_file")]
    found = judge_settings([process], HGX, KNOWN)
    assert {one.variable for one in found if one.code == "shadowed"} == {"NCCL_DEBUG", "NCCL_ALGO"}


def as_nccl_reads(content: bytes) -> dict[bytes, bytes]:
    """NCCL's own loop, written down letter by letter from ``src/misc/param.cc`` as the judge of the parser."""
    found: dict[bytes, bytes] = {}
    for line in content.splitlines(keepends=True) if b"\r" not in content else content.split(b"\n"):
        text = line.removesuffix(b"\n") + b"\0"
        if text[:1] == b"#":
            continue
        size = 0
        while text[size] not in (0, ord("=")):
            size += 1
        if text[size] == 0:
            continue
        name = text[: min(1023, size)]
        value = text[size + 1 :].split(b"\0")[0][:1023]
        found.setdefault(name, value)
    return found


lines = st.lists(
    st.one_of(
        st.sampled_from(
            [b"NCCL_DEBUG=WARN", b"NCCL_Y=a\0b", b"#NCCL_X=1", b"NCCL_X==a=b", b"NCCL_LONG=" + b"x" * 2000, b"="]
        ),
        st.binary(max_size=40).filter(lambda line: not set(line) & set(b"\n\v\f\x1c\x1d\x1e\x85")),
    ),
    max_size=20,
)


@given(lines)
def test_any_file_is_read_as_nccl_reads_it(content: list[bytes]) -> None:
    """Bytes of any kind: NUL, no UTF-8, lines without end."""
    whole = b"\n".join(content)
    expected = {
        name.decode(): value.decode("utf-8", "backslashreplace")
        for name, value in as_nccl_reads(whole).items()
        if name.startswith(b"NCCL_") and name.isascii() and name == name.strip()
    }

    assert {name: value for name, value in values(whole).items() if name.isascii() and "\\x" not in name} == expected


@given(st.binary(max_size=3000))
def test_no_file_makes_the_parser_fail(content: bytes) -> None:
    """And of none is anything kept that is not wanted."""
    assert all(one.name.startswith(("NCCL_", "TORCH_", "CUDA_")) for one in parsed(content).settings)


_DIGITS = st.text("0123456789abcdefABCDEFMx", min_size=1, max_size=8)
_SIGNS = st.sampled_from(["", " ", "+", "-"])


@given(
    st.one_of(
        st.integers(-(2**62), 2**62).map(str),
        st.tuples(_SIGNS, st.sampled_from(["", "0", "0x"]), _DIGITS).map("".join),
    )
)
def test_numbers_are_read_as_the_c_library_reads_them(text: str) -> None:
    """Octal, hexadecimal, trailing units, and words."""
    library = ctypes.CDLL(None)
    library.strtoll.restype = ctypes.c_longlong
    library.strtoll.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int]

    assert read_number(text).value == library.strtoll(text.encode(), None, 0)
