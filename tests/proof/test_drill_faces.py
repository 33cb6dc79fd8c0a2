"""Every drill that a daemon has a finding for: all faces say the same of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.drill_faces import DRILLS, codes_of, faces_agree, played


@pytest.mark.parametrize("name", DRILLS)
def test_all_faces_say_the_same_of_a_drill(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Part, severity and words of each finding, and the verdict: API, page, top, diagnosis and healthcheck."""
    with played(DRILLS[name], tmp_path, monkeypatch) as daemon:
        assert set(DRILLS[name].codes) <= codes_of(daemon)
        faces_agree(daemon)
