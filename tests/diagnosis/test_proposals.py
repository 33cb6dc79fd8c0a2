"""The settings that guides propose for a profile: read by this NCCL or not, and advised only with a measured gain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import yaml

import commwatch
from commwatch.diagnosis.check import Check, CheckVerdict
from commwatch.diagnosis.known import Known
from commwatch.diagnosis.marks.profiles import PROFILES, Asked
from commwatch.probes.by_hand.trial import SettingGain, SettingTrial
from diagnosis.exposed import branch_of, known_of
from support.machines import gpus, merged
from support.passes import in_one_pass

Word = Literal["faster", "slower", "same"]
PROPOSALS = yaml.safe_load((Path(commwatch.__file__).parent / "data/nccl_proposals.yaml").read_text())["proposals"]


def proposals(known: Known) -> list[Check]:
    """Those that the branch of the settings shows."""
    return [one for one in branch_of(known, "settings") if ": proposed " in one.what]


def trial(setting: str, *words: Word) -> SettingTrial:
    """What a setting came to, one step for each word."""
    name, _, value = setting.partition("=")
    percent = {"faster": 12.0, "slower": -9.0, "same": 1.0}
    gains = tuple(
        SettingGain(
            probe="all_reduce", operation="all_reduce", purpose="bandwidth", size_bytes=2**20 * size, ranks=8,
            without_seconds=1.0, with_seconds=1.0, gain_percent=percent[word], word=word,
        )
        for size, word in enumerate(words, 1)
    )  # fmt: skip
    return SettingTrial(settings={name: value}, taken_at=0.0, nccl_version="2.27.3", gains=gains)


def check(setting: str, *trials: SettingTrial, version: str = "2.27.3", profile: str = "70b") -> Check:
    """The line on one setting."""
    probed = ("all_reduce", "nccl", "all_reduce", "8", "67108864", "8", version, "", "", "model")
    node = merged(gpus(8, "NVIDIA H100 80GB HBM3"), {"commwatch_probe_info": {probed: 1}})
    known = replace(known_of(node), asked=Asked(PROFILES[profile]), trials=trials)
    [found] = [one for one in proposals(known) if one.what == f"{profile}: proposed {setting}"]
    return found


@in_one_pass("profile", ["7b", "30b", "70b", "235b"])
def test_each_profile_has_proposals_with_a_source(profile: str) -> None:
    """And none is shown unless a profile is asked for."""
    rows = [row for row in PROPOSALS if profile in row["profiles"]]
    shown = proposals(replace(known_of(gpus(8, "NVIDIA A10")), asked=Asked(PROFILES[profile])))

    assert len(shown) == len(rows) >= 9
    assert all(one.source.startswith("https://") for one in shown)
    assert proposals(known_of(gpus(8, "NVIDIA A10"))) == []


@in_one_pass(
    "setting, version, verdict, state",
    [
        ("NCCL_BUFFSIZE=8388608", "2.27.3", "published mark", "NCCL 2.27.3 reads it"),
        ("NCCL_BUFFSIZE=8388608", "", "published mark", "NCCL reads it, since when is not known"),
        ("NCCL_NVLS_ENABLE=1", "2.17.1", "published mark", "NCCL 2.17.1 reads it (since 2.17)"),
        ("NCCL_NVLS_ENABLE=1", "2.16.5", "notice", "NCCL 2.16.5 does not read it, 2.17 and newer do"),
        ("NCCL_NVLS_ENABLE=1", "", "published mark", "read since NCCL 2.17"),
        ("NCCL_NVLS_ENABLE=1", "simulated", "published mark", "read since NCCL 2.17"),
        ("NCCL_IB_CUDA_SUPPORT=1", "2.27.3", "notice", "NCCL up to 2.3.7 read it"),
        ("NCCL_IB_CUDA_SUPPORT=1", "", "notice", "NCCL up to 2.3.7 read it"),
        ("NCCL_NET_DISABLE=1", "2.27.3", "notice", "no NCCL reads it"),
    ],
)
def test_the_state_of_a_setting(setting: str, version: str, verdict: CheckVerdict, state: str) -> None:
    """By the version that the probes found; one without effect is to be left out, the others to be measured."""
    found = check(setting, version=version)

    assert (found.verdict, found.measured, found.next_step) == (verdict, state, "")
    assert ("leave it out" if verdict == "notice" else "shows what it gains") in found.detail


@in_one_pass(
    "words, measured, next_step",
    [
        (["faster", "same"], "+12 % in all_reduce", "Set NCCL_BUFFSIZE=8388608 for this job"),
        (["same"], "no gain", "Leave it out."),
        (["faster", "slower"], "-9 % in all_reduce", "Leave it out."),
    ],
)
def test_only_a_gain_that_was_measured_is_advised(words: list[Word], measured: str, next_step: str) -> None:
    """One that makes a step slower is not, nor one of another value; the newest trial counts."""
    setting = "NCCL_BUFFSIZE=8388608"
    found = check(setting, trial(setting, "faster"), trial(setting, *words))
    other = check(setting, trial("NCCL_BUFFSIZE=1048576", "faster"))

    assert (found.verdict, found.measured) == ("notice", measured)
    assert found.next_step.startswith(next_step)
    assert (other.verdict, other.next_step) == ("published mark", "")
