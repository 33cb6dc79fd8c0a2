"""Names that NCCL reads, once read, never read, or that were mistyped."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from analysis.nccl_settings.cases import HGX, KNOWN, judged, said
from commwatch.jobs.settings.process_environment import settings_of_environment
from commwatch.jobs.settings.records import CODES, SEVERITIES
from commwatch.jobs.settings.variables import parse_version, public_name
from support.passes import in_one_pass


@in_one_pass(
    "name, instead",
    [
        ("NCCL_TIMEOUT", "init_process_group"),
        ("NCCL_IB_MTU", "MTU of the port"),
        ("NCCL_GDR_COPY", "NCCL_GDRCOPY_ENABLE"),
        ("NCCL_NVLS_DISABLE", "NCCL_NVLS_ENABLE"),
    ],
)
def test_a_name_that_nothing_ever_read_is_useless_and_told_what_to_use(name: str, instead: str) -> None:
    """Such names circulate on the web."""
    (remark,) = judged(HGX, {name: "1800"})

    assert (remark.code, remark.severity, remark.variable) == ("never_read", "useless", name)
    assert instead in remark.next_step


@in_one_pass(
    "written, meant",
    [
        ("NCCL_SOCKET_IFNAM", "NCCL_SOCKET_IFNAME"),
        ("NCCL_P2P_DISABEL", "NCCL_P2P_DISABLE"),
        ("NCCL_IBDISABLE", "NCCL_IB_DISABLE"),
        ("NCCL_IB_HCAS", "NCCL_IB_HCA"),
        ("NCCL_ib_disable", "NCCL_IB_DISABLE"),
        ("NCCL_AGLO", "NCCL_ALGO"),
        ("NCCL_NEX", "NCCL_NET"),
        ("TORCH_NCCL_BLOCKNG_WAIT", "TORCH_NCCL_BLOCKING_WAIT"),
    ],
)
def test_a_mistyped_name_is_told_which_was_meant(written: str, meant: str) -> None:
    """Letters missing, swapped, wrong or too many, underscores and case; in a short name too."""
    (remark,) = judged(HGX, {written: "0"})

    assert (remark.code, remark.severity) == ("misspelt", "useless")
    assert meant in remark.next_step
    assert public_name(remark.variable, KNOWN) == "other"


def test_of_thousands_of_names_the_first_are_searched_for_typing_errors() -> None:
    """A user who writes them into a file keeps the audit from no other process."""
    found = judged(HGX, {f"NCCL_SOCKET_IFNAME{number:04}": "0" for number in range(1000)})

    assert Counter(one.code for one in found) == {"misspelt": 64, "unknown_name": 936}


@in_one_pass(
    "name",
    [
        "NCCL_SOMETHING_ELSE", "NCCL_QRS", "NCCL_", "NCCL_" + "A" * 5000,
        "NCCL_SOCKET_IFXYZ",  # three letters off
        "NCCL_XLGX",  # two letters off a short name
        "NCCL_MIX_CTAS",  # as near to one name as to another
    ],
)  # fmt: skip
def test_a_name_like_no_other_is_a_note(name: str) -> None:
    """A plugin may read it; a long one is shown cut."""
    (remark,) = judged(HGX, {name: "1"})

    assert (remark.code, remark.severity) == ("unknown_name", "note")
    assert len(remark.variable) <= 201


@in_one_pass(
    "name",
    [
        "NCCL_INSPECTOR_ENABLE", "NCCL_OFI_ANY", "NCCL_FASTRAK_NUM_FLOWS", "NCCL_GPUDIRECTTCPX_CTRL_DEV",
        "NCCL_PLUGIN_P2P", "NCCL_IBEXT_DISABLE",  # like NCCL_IB_DISABLE, which would end RDMA
    ],
)  # fmt: skip
def test_the_names_of_plugins_are_let_be(name: str) -> None:
    """NCCL does not read them, and should not."""
    assert said(HGX, {name: "1"}) == set()


@in_one_pass(
    "name, value, version, found",
    [
        ("NCCL_WORK_FIFO_DEPTH", "65536", (2, 21, 5), ("old_name", "note")),
        ("NCCL_WORK_FIFO_DEPTH", "65536", (2, 22, 3), ("removed", "useless")),
        ("NCCL_WORK_FIFO_DEPTH", "65536", None, ("removed", "useless")),
        ("NCCL_NVLS_ENABLE", "0", (2, 16, 5), ("not_in_version", "useless")),
        ("NCCL_NVLS_ENABLE", "0", (2, 17, 1), ("nvls_off", "suspicious")),
        ("NCCL_NVLS_ENABLE", "0", None, ("nvls_off", "suspicious")),
    ],
)
def test_a_name_is_useless_for_a_version_that_does_not_read_it(
    name: str, value: str, version: tuple[int, int, int] | None, found: tuple[str, str]
) -> None:
    """Any more or yet; then its value does no harm either. Where the version is not known the newest counts."""
    assert said(HGX, {name: value}, nccl_version=version) == {(found[0], name, found[1])}


def test_a_removed_name_does_no_harm_by_its_value() -> None:
    """NCCL_IB_GDR_LEVEL=0 once turned GPUDirect off; now it is only useless."""
    (remark,) = judged(HGX, {"NCCL_IB_GDR_LEVEL": "0"})

    assert remark.code == "removed"
    assert "NCCL_NET_GDR_LEVEL" in remark.next_step


def test_of_a_removed_name_that_nothing_took_the_place_of_it_is_said_to_take_it_out() -> None:
    """Each other removed name has what to use instead."""
    removed = {name: variable.use for name, variable in KNOWN.variables.items() if variable.until}
    steps = {name: next(one.next_step for one in judged(HGX, {name: "1"}) if one.code == "removed") for name in removed}

    assert steps["NCCL_CUDA_PATH"] == "Take it out."
    assert steps == {name: f"Use: {use}." if use else "Take it out." for name, use in removed.items()}


def test_names_that_torch_gave_up_are_notes() -> None:
    """They still work; the value is judged as that of the new name."""
    assert said(HGX, {"NCCL_ASYNC_ERROR_HANDLING": "1"}) == {("old_name", "NCCL_ASYNC_ERROR_HANDLING", "note")}
    assert ("waits_block", "NCCL_BLOCKING_WAIT", "suspicious") in said(HGX, {"NCCL_BLOCKING_WAIT": "1"})


def test_only_settings_are_kept_and_of_secrets_no_value(tmp_path: Path) -> None:
    """The key of NCCL's encryption, and whatever sounds like one; a partition key's index is none."""
    settings = ("NCCL_X", "TORCH_NCCL_X", "TORCH_FR_BUFFER_SIZE", "CUDA_LAUNCH_BLOCKING", "NCCL_IB_PKEY")
    secrets = ("NCCL_PSK", "NCCL_SITE_TOKEN", "NCCL_my_password")
    others = ("AWS_SECRET", "CUDA_HOME", "MY_NCCL_X", "nccl_x", "TORCH_HOME", "")

    process = settings_of_environment(dict.fromkeys((*settings, *secrets, *others), "1"), KNOWN, tmp_path)

    assert {one.name: one.value for one in process.settings} == {
        **dict.fromkeys(settings, "1"),
        **dict.fromkeys(secrets),
    }


@given(st.text(max_size=40))
def test_what_may_be_a_label_is_bounded(name: str) -> None:
    """A name that is not known becomes other, whatever it is."""
    assert public_name(f"NCCL_{name}!", KNOWN) == "other"


def test_control_characters_in_a_name_do_not_reach_the_terminal() -> None:
    """Whoever starts a job chooses its variables."""
    (remark,) = judged(HGX, {"NCCL_\x1b[2J\n": "\x1b]0;title\x07"})

    assert remark.variable == "NCCL_\\x1b[2J\\n"


def test_the_list_of_variables_is_sound() -> None:
    """Versions are versions, what replaces a name is a known name, no name is both read and never read."""
    for name, variable in KNOWN.variables.items():
        for version in (variable.since, variable.until, variable.seen):
            assert not version or parse_version(version), name
        if variable.since and variable.until:
            assert parse_version(variable.since) <= parse_version(variable.until), name
        assert not variable.until or variable.use or variable.seen or not variable.meaning, name
        for used in re.findall(r"\b(?:TORCH_)?NCCL_[A-Z0-9_]+", variable.use):
            assert used in KNOWN.variables, name
        assert (variable.kind in ("words", "level", "choices")) == bool(variable.accepted), name
    assert not KNOWN.variables.keys() & KNOWN.never_read.keys()
    assert len(KNOWN.variables) > 300


def test_every_setting_does_no_harm_at_its_default() -> None:
    """Where the default is a number or a word, setting it is at worst needless."""
    for name, variable in KNOWN.variables.items():
        default = variable.default if re.fullmatch(r"-?[0-9]+|[A-Z]+", variable.default) else ""
        grave = {one for one in said(HGX, {name: default}) if one[2] in ("harmful", "suspicious")}
        assert grave == set(), name


def test_every_code_and_severity_is_documented() -> None:
    """Each with a line of its own; and nothing is documented that is not there."""
    document = (Path(__file__).resolve().parents[3] / "docs/using/nccl-settings.md").read_text(encoding="utf-8")

    with_severity = re.findall(r"^- `([a-z0-9_]+)` \([a-z, ]+\): ", document, re.MULTILINE)
    assert sorted(with_severity) == sorted(CODES)
    assert all(f"**{severity}**" in document for severity in SEVERITIES)
