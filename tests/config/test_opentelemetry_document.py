"""docs/using/opentelemetry.md: its examples are valid."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from commwatch.__main__ import build_parser
from commwatch.config.assets import asset
from commwatch.config.flags import config_from
from support.promtool_cases import promtool

FOLDER = asset("docs/using")
PAGE = (FOLDER / "opentelemetry.md").read_text(encoding="utf-8")
COLLECTOR: dict[str, Any] = yaml.safe_load((FOLDER / "opentelemetry/collector.yaml").read_text(encoding="utf-8"))


def test_a_pipeline_of_the_collector_names_what_is_there() -> None:
    """And all of that: the collector refuses an unknown name, and warns of one that is not used."""
    for kind in ("receivers", "exporters"):
        used = {name for pipeline in COLLECTOR["service"]["pipelines"].values() for name in pipeline[kind]}
        assert used == set(COLLECTOR[kind])


@pytest.mark.prometheus
def test_the_collector_scrapes_as_a_prometheus_would(tmp_path: Path) -> None:
    """The receiver takes the configuration of Prometheus; the job is that of the rules."""
    scraping = COLLECTOR["receivers"]["prometheus"]["config"]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(scraping), encoding="utf-8")

    checked = promtool("check", "config", tmp_path / "prometheus.yml")
    assert checked.returncode == 0, checked.stdout
    assert [one["job_name"] for one in scraping["scrape_configs"]] == ["commwatch"]


def test_the_settings_of_the_daemon(tmp_path: Path) -> None:
    """As the daemon reads them."""
    [example] = re.findall(r"```yaml\n(# /etc/commwatch/commwatch.yaml\n.*?)```", PAGE, re.DOTALL)
    (tmp_path / "commwatch.yaml").write_text(example, encoding="utf-8")
    arguments = build_parser().parse_args(["run", "--config.file", str(tmp_path / "commwatch.yaml")])

    assert config_from(arguments, {}).metrics.otlp.endpoint == "http://localhost:4318"
