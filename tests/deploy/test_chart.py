"""The Helm chart and the manifests rendered from it, without helm: what tests/proof/test_chart.py leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from commwatch import __version__
from commwatch.__main__ import build_parser, main
from commwatch.config.flags import config_from
from support.daemon import ROOT

CHART, MANIFESTS = ROOT / "packaging/helm/commwatch", ROOT / "packaging/kubernetes"


def read(path: Path) -> dict[str, Any]:
    """A file of YAML or JSON."""
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def manifests() -> dict[str, dict[str, Any]]:
    """What is applied without the Prometheus operator, by kind."""
    return {one["kind"]: one for one in yaml.safe_load_all((MANIFESTS / "commwatch.yaml").read_text("utf-8"))}


@pytest.fixture(scope="module")
def pod(manifests: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Its specification."""
    found: dict[str, Any] = manifests["DaemonSet"]["spec"]["template"]["spec"]
    return found


def test_the_manifests_are_those_of_the_chart() -> None:
    """Each carries the digest of the chart that it was rendered from."""
    done = subprocess.run(
        [sys.executable, ROOT / "packaging/chart.py", "--check"], text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_rules_and_dashboards_are_the_shipped_ones() -> None:
    """Links, which helm follows: there is no copy that could be older."""
    assert (CHART / "files/rules").resolve() == ROOT / "alerts/rules"
    assert (CHART / "files/dashboards").resolve() == ROOT / "grafana/dashboards"


def test_the_chart_has_the_version_of_the_program() -> None:
    """The image's tag comes from it."""
    chart = read(CHART / "Chart.yaml")
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def keys(values: dict[str, Any], schema: dict[str, Any]) -> list[tuple[str, list[str], list[str]]]:
    """Keys of a mapping beside those of its schema, where it admits no others."""
    found = [("", sorted(values), sorted(schema["properties"]))]
    for name, part in schema["properties"].items():
        if part.get("additionalProperties") is False:
            found += [(f"{name}{path}", ours, theirs) for path, ours, theirs in keys(values[name], part)]
    return found


def test_every_value_has_a_default_and_a_schema() -> None:
    """So a misspelt value is refused by helm."""
    values, schema = read(CHART / "values.yaml"), read(CHART / "values.schema.json")
    schema["properties"].pop("global")

    assert schema["additionalProperties"] is False
    for path, ours, theirs in keys(values, schema):
        assert ours == theirs, path


def test_the_configuration_is_valid(manifests: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """As the daemon in the pod would read it."""
    (tmp_path / "commwatch.yaml").write_text(manifests["ConfigMap"]["data"]["commwatch.yaml"])

    assert main(["check-config", "--config.file", str(tmp_path / "commwatch.yaml")]) == 0


def test_the_command_line_is_one_of_the_program(pod: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags and variables reach the settings that they are meant for."""
    [container] = pod["containers"]
    program, *arguments = container["command"]
    for variable in container["env"]:
        monkeypatch.setenv(variable["name"], variable["value"])
    monkeypatch.delenv("COMMWATCH_CONFIG_FILE")  # there is none here

    config = config_from(build_parser().parse_args(arguments))

    assert program == "commwatch"
    assert (config.web.listen_addresses, config.paths.state) == ((":28029",), "/var/lib/commwatch")


def test_the_pod_has_no_more_rights_than_it_needs(pod: dict[str, Any]) -> None:
    """Root for the kubelet's socket, without a capability; of the node's files its state and that socket's folder."""
    [container] = pod["containers"]
    rights = container["securityContext"]
    on_node = {one["name"]: one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one}
    writable = {one["mountPath"] for one in container["volumeMounts"] if not one.get("readOnly")}

    assert rights == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
        "readOnlyRootFilesystem": True,
        "runAsUser": 0,
        "runAsGroup": 0,
    }
    assert on_node == {"state": "/var/lib/commwatch", "pod-resources": "/var/lib/kubelet/pod-resources"}
    assert writable == {"/var/lib/commwatch", "/tmp", "/dev/shm"}
    assert pod["automountServiceAccountToken"] is False
    assert "nvidia.com/gpu" not in json.dumps(container["resources"])


def test_the_probes_of_the_kubelet_ask_for_the_process_alone(pod: dict[str, Any]) -> None:
    """A node with a broken GPU must stay scrapeable."""
    [container] = pod["containers"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert [port["name"] for port in container["ports"]] == [container["livenessProbe"]["httpGet"]["port"]]


def test_the_pod_monitor_gives_the_labels_that_the_rules_expect(pod: dict[str, Any]) -> None:
    """Job commwatch, and the node as instance, whatever pod is there."""
    monitor = read(MANIFESTS / "podmonitor.yaml")["spec"]
    [endpoint] = monitor["podMetricsEndpoints"]
    labels = {one.get("targetLabel") for one in endpoint["relabelings"]}

    assert {"targetLabel": "job", "replacement": "commwatch"} in endpoint["relabelings"]
    assert monitor["selector"]["matchLabels"]["app.kubernetes.io/name"] == "commwatch"
    assert endpoint["port"] == pod["containers"][0]["ports"][0]["name"]
    assert {"instance", "node"} <= labels


def test_the_service_leads_to_the_pods(manifests: dict[str, dict[str, Any]]) -> None:
    """To each of them: with one address a scrape would reach any node, and pods would get a variable COMMWATCH_PORT."""
    service = manifests["Service"]["spec"]

    assert service["selector"] == manifests["DaemonSet"]["spec"]["selector"]["matchLabels"]
    assert service["clusterIP"] == "None"
    assert [port["targetPort"] for port in service["ports"]] == ["metrics"]
