"""What computing hides of a sum of gradients, from three times to the probe's answer, its metric and its words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commwatch.config.settings import Config, Paths, Probes, Simulation
from commwatch.config.settings import Probe as Settings
from commwatch.probes.by_hand.answer import notes_of
from probes.recorded import Probe
from probes.results import measured, plan_of
from probes.test_answer import NOW, answer
from probes.test_command import run
from support.passes import in_one_pass
from support.quick_ranks import measure_quickly


@in_one_pass(
    "alone, product, both, ratio",
    [
        (1.0, 3.0, 3.0, 1.0),
        (1.0, 3.0, 4.0, 0.0),
        (3.0, 1.0, 3.25, 0.75),
        (2.0, 2.0, 3.0, 0.5),
        (1.0, 3.0, 4.5, 0.0),
        (1.0, 3.0, 2.9, 1.0),
    ],
)
def test_of_the_shorter_one_so_much_is_hidden(alone: float, product: float, both: float, ratio: float) -> None:
    """All of it where both take as long as the longer one, nothing where they take as long as one after the other."""
    probe = Probe(plan_of("training"))
    probe.steps(alone, product, both)

    assert probe.value("hidden_ratio") == pytest.approx(ratio)


def test_the_answer_says_what_is_hidden() -> None:
    """In numbers and in a sentence; times of products are not judged."""
    plan = plan_of("training", bandwidth_bytes=25 * 2**20)
    told = answer(plan, measured(plan, NOW, [0.4e-3, 0.2e-3, 0.45e-3]))

    assert told.hidden is not None
    assert told.hidden.hidden_ratio == pytest.approx(0.75)
    assert [row.verdict for row in told.rows[1:]] == ["not judged"] * 2
    assert [row.bus_bandwidth_bytes_per_second for row in told.rows[1:]] == [None] * 2
    assert "a sum of 400 µs under a product of 200 µs takes 450 µs: 75 % of the shorter one is hidden" in notes_of(told)


def test_the_daemon_exposes_the_share_of_its_last_result() -> None:
    """As ``commwatch_probe_hidden_ratio``, of training probes alone; the bandwidth is that of the sum alone."""
    probe, other = Probe(plan_of("training")), Probe()
    before = probe.value("hidden_ratio")
    probe.steps([1.0, 1.0], [1.0, 1.0], [1.5, 1.5])
    other.result()

    assert before is None
    assert probe.value("hidden_ratio") == pytest.approx(0.5)
    assert probe.value("last_bus_bandwidth_bytes_per_second") == pytest.approx(2**20)
    assert not any(name == "commwatch_probe_hidden_ratio" for name, *_ in other.series())


def test_a_simulated_node_is_asked_by_name_or_by_the_shortcut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Configured or not."""
    measure_quickly(monkeypatch)
    defined = Probes(definitions={"step": Settings(measure="training")})
    config = Config(paths=Paths(state=str(tmp_path)), simulation=Simulation(preset="a10x2"), probes=defined)

    assert run(config, "step", "--json") == 0
    assert run(config, "--training") == 0

    out = capsys.readouterr().out
    told, _ = json.JSONDecoder().raw_decode(out)
    [answered] = told["probes"]
    assert [row["operation"] for row in answered["rows"]] == ["all_reduce", "matrix_product", "overlapped"]
    assert 0.7 < answered["hidden"]["hidden_ratio"] <= 1
    assert "step: matrix_product ×2" in out
