"""The dashboards as files: current, and with the thresholds and addresses of a site."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from commwatch.__main__ import main
from commwatch.config.assets import asset
from support.dashboards import models, panels_of


def test_an_outdated_dashboard_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A changed, a missing and a superfluous file are named; files of others in the folder are left alone."""
    assert main(["dashboards", "--output", str(tmp_path)]) == 0
    (tmp_path / "commwatch-node.json").write_text("{}", encoding="utf-8")
    (tmp_path / "commwatch-pairs.json").unlink()
    (tmp_path / "commwatch-old.json").write_text("{}", encoding="utf-8")
    (tmp_path / "own.json").write_text("{}", encoding="utf-8")

    assert main(["dashboards", "--check", "--output", str(tmp_path)]) == 1

    named = re.findall(r"([\w-]+)\.json is not current", capsys.readouterr().err)
    assert named == ["commwatch-node", "commwatch-old", "commwatch-pairs"]
    assert main(["dashboards", "--output", str(tmp_path)]) == 0
    assert sorted(path.stem for path in tmp_path.iterdir()) == [*sorted(models()), "own"]


def test_a_sites_thresholds_and_runbooks_reach_the_panels(tmp_path: Path) -> None:
    """With a site's file the panels have the limits that its alerts have, and link to its runbooks."""
    (tmp_path / "own.yaml").write_text("nvlink_sibling_low_ratio: {value: 0.42}\n", encoding="utf-8")
    site = tmp_path / "site.yml"
    site.write_text("thresholds: own.yaml\nrunbooks: https://wiki.test/\n", encoding="utf-8")

    code = main(["dashboards", "--site", str(site), "--output", str(tmp_path / "out")])

    text = (tmp_path / "out" / "commwatch-node.json").read_text(encoding="utf-8")
    assert code == 0
    assert '"value": 0.42' in text
    assert "https://wiki.test/CommwatchNvlinkBelowSiblings.md" in text
    assert '"title": "Runbooks"' in text
    assert "public/runbooks" not in text


def test_a_shared_dashboard_asks_for_its_data_source(tmp_path: Path) -> None:
    """With --share each file names its one input, which the variable takes, and every plugin of its panels; all else is
    as in the provisioned file."""
    assert main(["dashboards", "--share", "--output", str(tmp_path)]) == 0

    for uid, provisioned in models().items():
        shared = json.loads((tmp_path / f"{uid}.json").read_text(encoding="utf-8"))
        (asked,) = shared.pop("__inputs")
        required = {(one["type"], one["id"]) for one in shared.pop("__requires")}
        assert shared.pop("__elements") == {}
        kinds = {("panel", panel["type"]) for panel in panels_of(provisioned)}
        assert required == {("grafana", "grafana"), ("datasource", "prometheus"), *kinds}
        source = shared["templating"]["list"][0]
        assert source["current"]["value"] == f"${{{asked['name']}}}"
        source["current"] = provisioned["templating"]["list"][0]["current"]
        assert shared == provisioned


@pytest.mark.parametrize("arguments", [["--site", "site.yml"], ["--thresholds", "missing.yaml"]])
def test_wrong_options_write_nothing(arguments: list[str]) -> None:
    """A site without a folder of its own, and thresholds that cannot be read, are errors."""
    try:
        code: object = main(["dashboards", *arguments])
    except SystemExit as error:
        code = error.code

    assert code == 2
    assert main(["dashboards", "--check", "--output", str(asset("grafana/dashboards"))]) == 0
