"""Profiles by name and from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from commwatch.diagnosis.marks.profiles import PROFILES, Asked, profile_of
from commwatch.diagnosis.preflight import preflight
from commwatch.errors import ConfigError, UsageError
from support.facts import NOW, facts_of
from support.machines import gpus, merged, probe

OURS = """\
parameters: 13B
active_parameters: 2B
strategy: tp
tokens: 4096
hidden: 5120
layers: 40
experts_per_token: 8
all_reduce: 50GB/s
"""


def written(folder: Path, text: str) -> str:
    """A file with a profile."""
    file = folder / "ours-13b.yaml"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_a_name_is_one_of_ours() -> None:
    """Whatever files there are."""
    assert profile_of("30b") is PROFILES["30b"]


def test_a_file_is_a_site_s_own(tmp_path: Path) -> None:
    """It is called as its file, and held against what it asks for."""
    ours = profile_of(written(tmp_path, OURS))

    assert (ours.name, ours.parameters, ours.active_parameters) == ("ours-13b", 13 * 10**9, 2 * 10**9)
    assert ours.job == "13B parameters (2B active), tensor parallel, a micro-batch of 4096 tokens"
    node = facts_of(merged(gpus(2, "NVIDIA A10", memory=24e9), probe("all_reduce", 10.8e9, 11.9e9, ranks=2)))
    answer, _ = preflight(node, Asked(ours), NOW, 3600.0)
    assert answer.verdict == "Warning"
    assert answer.reason.endswith("all_reduce bus bandwidth, 64 MiB, 2 GPUs is 10.8 GB/s, not at least 50 GB/s")


def test_adapters_send_no_gradients_of_the_whole_model(tmp_path: Path) -> None:
    """LoRA with DDP waits for next to nothing where the whole model waits for long."""
    node = facts_of(merged(gpus(2, "NVIDIA A10", memory=4e11), probe("all_reduce", 10.8e9, 11.9e9, ranks=2)))
    steps = OURS.replace("all_reduce: 50GB/s\n", "").replace("active_parameters: 2B\n", "").replace("tp", "ddp")
    whole, lora = (profile_of(written(tmp_path, text)) for text in (steps, f"trainable: 20M\n{steps}"))

    assert preflight(node, Asked(whole, 0.1), NOW, 3600.0)[0].verdict == "Warning"
    assert preflight(node, Asked(lora, 0.1), NOW, 3600.0)[0].reason.startswith("ours-13b: a step of 100 ms")


def test_without_a_mark_the_step_is_judged(tmp_path: Path) -> None:
    """And where what a GPU computes is not known, nothing is."""
    ours = profile_of(written(tmp_path, OURS.replace("all_reduce: 50GB/s\n", "")))
    unheard = facts_of(merged(gpus(2, "NVIDIA Unheard", memory=4e11), probe("all_reduce", 10.8e9, 11.9e9, ranks=2)))

    assert preflight(unheard, Asked(ours), NOW, 3600.0)[0].verdict == "Unknown"
    assert "--step-time" in preflight(unheard, Asked(ours), NOW, 3600.0)[0].reason
    assert preflight(unheard, Asked(ours, 100.0), NOW, 3600.0)[0].verdict == "OK"
    assert preflight(unheard, Asked(ours, 0.001), NOW, 3600.0)[0].verdict == "Warning"


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "said"),
    [
        ("13B", "13", 1, "parameters", "has no unit"),
        ("13B", "many", 1, "parameters", "expected a whole number of parameters"),
        ("2B", "14B", 2, "active_parameters", "expected at most the parameters, 13B"),
        ("tp", "pp", 3, "strategy", "ddp"),
        ("4096", "0", 4, "tokens", "expected 1 or more, got 0"),
        ("layers: 40", "layers: forty", 6, "layers", "expected a whole number"),
        ("experts_per_token: 8", "experts_per_token: -1", 7, "experts_per_token", "expected 0 or more, got -1"),
        ("50GB/s", "50", 8, "all_reduce", "50"),
        (
            "parameters: 13B\n",
            "parameters: 13B\ntrainable: 14B\n",
            2,
            "trainable",
            "expected at most the parameters, 13B",
        ),
        ("hidden", "hiden", 5, "hiden", "did you mean hidden?"),
    ],
)
def test_bad_input_is_one_line_with_file_line_and_key(
    old: str, new: str, line: int, key: str, said: str, tmp_path: Path
) -> None:
    """And what would be right."""
    file = written(tmp_path, OURS.replace(old, new, 1))

    with pytest.raises(ConfigError) as caught:
        profile_of(file)

    assert str(caught.value).startswith(f"{file}:{line}: {key}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_neither_a_profile_nor_a_file_is_wrong_use() -> None:
    """All names are said."""
    with pytest.raises(UsageError, match=r"no such profile: 8b; expected 7b, 30b, 70b, 235b or a YAML file") as caught:
        profile_of("8b")
    assert caught.value.exit_code == 2
