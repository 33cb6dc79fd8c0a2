"""The compose file and the provisioning fit what they mount."""

from __future__ import annotations

import re
from typing import Any

import yaml

from commwatch.config.assets import asset
from support.dashboards import models

GRAFANA = asset("grafana")


def test_provisioning_finds_what_is_mounted() -> None:
    """The provider looks where the dashboards are mounted; the data source has a uid and the scrape interval."""
    provider = yaml.safe_load((GRAFANA / "provisioning/dashboards/commwatch.yaml").read_text())["providers"][0]
    source = yaml.safe_load((GRAFANA / "provisioning/datasources/commwatch.yaml").read_text())["datasources"][0]
    example = yaml.safe_load((asset("alerts") / "prometheus.example.yml").read_text())

    assert provider["allowUiUpdates"] is False
    assert provider["folder"] == "commwatch"
    assert source["uid"] == "commwatch"
    for model in models().values():
        (chosen,) = [one["current"] for one in model["templating"]["list"] if one["type"] == "datasource"]
        assert chosen == {"text": source["name"], "value": source["uid"]}
    assert source["isDefault"] is False, "two defaults among all provisioned files keep Grafana from starting"
    assert source["jsonData"]["timeInterval"] == example["global"]["scrape_interval"]
    assert provider["options"]["path"] in {target for _, target in _mounts("grafana")}


def test_the_compose_file_mounts_what_exists() -> None:
    """Each mounted path exists beside the compose file and is mounted read-only; no image is left to chance."""
    services = _compose()["services"]

    assert services.keys() == {"prometheus", "alertmanager", "grafana"}
    for name, service in services.items():
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), service["image"]
        for source, target in _mounts(name):
            assert (GRAFANA / source).exists(), f"{source} for {target}"


def test_the_compose_file_gives_prometheus_what_its_configuration_names() -> None:
    """Rules and Alertmanager's files stand where the example configurations look for them."""
    prometheus, alertmanager = dict(_targets("prometheus")), dict(_targets("alertmanager"))

    assert prometheus["/etc/prometheus/rules"] == "../alerts/rules"
    assert alertmanager["/etc/alertmanager/alertmanager.tmpl"] == "../alerts/alertmanager.tmpl"
    assert "--rules.alert.for-grace-period=15s" in _compose()["services"]["prometheus"]["command"]


def test_the_compose_file_opens_nothing() -> None:
    """All services are on the host's network and listen on the loopback device; Grafana asks for a password."""
    services = _compose()["services"]
    grafana = services["grafana"]["environment"]

    assert all(service["network_mode"] == "host" and "ports" not in service for service in services.values())
    for name in ("prometheus", "alertmanager"):
        (listens,) = [one for one in services[name]["command"] if one.startswith("--web.listen-address")]
        assert listens.partition("=")[2].startswith("127.0.0.1:")
    assert "--cluster.listen-address=" in services["alertmanager"]["command"]
    assert grafana["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    assert grafana["GF_SECURITY_ADMIN_PASSWORD"].startswith("${GRAFANA_ADMIN_PASSWORD:?")
    assert not any("ANONYMOUS" in key for key in grafana)


def _compose() -> Any:
    return yaml.safe_load((GRAFANA / "compose.yaml").read_text(encoding="utf-8"))


def _mounts(service: str) -> list[tuple[str, str]]:
    """Path beside the compose file and path in the container, of what is mounted from the checkout."""
    found = []
    for volume in _compose()["services"][service].get("volumes", ()):
        source, target, *mode = volume.split(":")
        if source.startswith("."):
            assert mode == ["ro"], volume
            found.append((source, target))
    return found


def _targets(service: str) -> list[tuple[str, str]]:
    return [(target, source) for source, target in _mounts(service)]
