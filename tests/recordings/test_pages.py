"""Each recording of this folder gives the page that lies beside it; ``--update-golden`` writes the pages again."""

from __future__ import annotations

from pathlib import Path

import pytest

from commwatch_rehearsal.simulation.presets import PRESETS
from support.pages import first_gpu_lines, samples
from support.simulated_daemon import rehearsed

HERE = Path(__file__).parent
RECORDINGS = sorted(HERE.glob("*.cwrec"))


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda one: one.stem)
def test_a_recording_gives_its_page(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The node as it was at the end of the recording, read twice."""
    with rehearsed(str(recording), tmp_path, monkeypatch, booted_at=1.8e9, time_now=100.0) as node:
        node.run()
        node.time += 60.0
        node.run()
        text = first_gpu_lines(node.snapshot())
    page = recording.with_suffix(".txt")
    if request.config.getoption("--update-golden"):
        page.write_text(text, encoding="utf-8")
    assert samples(page.read_text(encoding="utf-8")) == samples(text), "if this is meant: --update-golden"


def test_every_preset_has_a_small_recording() -> None:
    """Recordings of real nodes come beside them; each is of a few seconds."""
    assert {one.stem for one in RECORDINGS} >= set(PRESETS)
    assert max(one.stat().st_size for one in RECORDINGS) < 100_000
