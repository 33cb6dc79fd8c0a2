"""The Helm chart through helm: rendered with many values, held against the schemas of Kubernetes and the operator."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tarfile
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml

from commwatch.__main__ import main
from commwatch_exporters.http_server import HttpServer, Limits, Request, Response
from support.daemon import ROOT, environment
from support.http import serving
from support.waiting import until

sys.path.insert(0, str(ROOT / "packaging"))
import chart

CHART = ROOT / "packaging/helm/commwatch"
HELM = shutil.which("helm", path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin")
pytestmark = pytest.mark.skipif(HELM is None, reason="helm is not here: scripts/get-helm")

IMAGE = {"image": {"repository": "registry.example/commwatch"}}
ALL: dict[str, Any] = {
    **IMAGE,
    "config": {"inventory": {"expected": {"gpu": 8}}, "web": {"telemetry_path": "/m"}},
    "thresholds": {"probe_latency_spike_streak": {"value": 4}},
    "imagePullSecrets": [{"name": "pull"}],
    "web": {"secretName": "web", "scheme": "HTTPS"},
    "capabilities": ["SYS_PTRACE"],
    "seccompProfile": "Unconfined",
    "nodeSelector": {"nvidia.com/gpu.present": "true"},
    "affinity": {"nodeAffinity": {}},
    "podLabels": {"team": "fabric"},
    "podAnnotations": {"a": "b"},
    "extraArgs": ["--log.level=debug"],
    "env": [{"name": "TZ", "value": "UTC"}],
    "extraVolumes": [{"name": "logs", "hostPath": {"path": "/var/log/nccl"}}],
    "extraVolumeMounts": [{"name": "logs", "mountPath": "/var/log/nccl", "readOnly": True}],
    "monitor": {
        "kind": "PodMonitor", "labels": {"release": "p"}, "cluster": "east", "endpoint": {"honorLabels": True},
    },
    "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {"matchLabels": {"team": "watch"}}}]},
    "prometheusRule": {"enabled": True, "labels": {"release": "p"}, "runbooks": "https://w/r", "grafana": "https://g"},
    "dashboards": {"enabled": True, "annotations": {"folder": "fabric"}},
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "least": IMAGE,
    "all": ALL,
    "privileged": {**IMAGE, "privileged": True},
    "no probes, no root, no state": {
        **IMAGE, "config": {"probes": {"enabled": False}}, "runAsUser": 65532, "state": {"hostPath": ""},
        "runtimeClassName": "", "priorityClassName": "", "serviceAccount": {"create": False, "name": "other"},
    },
    "ServiceMonitor and other names": {
        **IMAGE, "monitor": {"kind": "ServiceMonitor"}, "networkPolicy": {"enabled": True}, "nameOverride": "links",
        "fullnameOverride": "gpu-links", "prometheusRule": {"enabled": True},
        "port": 9999, "web": {"secretName": "web", "scheme": "HTTPS"},
    },
    "client certificates": {**IMAGE, "web": {"secretName": "web", "scheme": "HTTPS", "clientCertificates": True}},
}  # fmt: skip


def helm(*words: str | Path, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run helm with values on its standard input."""
    return subprocess.run(
        [str(HELM), *map(str, words), "--values=-"],
        input=yaml.safe_dump(values), text=True, capture_output=True, check=False,
    )  # fmt: skip


def rendered(values: dict[str, Any]) -> list[dict[str, Any]]:
    """What the chart is with values."""
    done = helm("template", "fabric", CHART, "--namespace=gpu", values=values)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def of_kind(documents: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Those of a kind."""
    return [one for one in documents if one["kind"] == kind]


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_helm_has_nothing_against_it(values: dict[str, Any]) -> None:
    """Its linter, strictly."""
    done = helm("lint", "--strict", CHART, values=values)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_kubernetes_and_its_operator_know_every_key(values: dict[str, Any]) -> None:
    """By the schemas of the oldest and the newest Kubernetes that are there, strictly."""
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    v1 = pytest.importorskip(
        "cloudcoil.models.prometheus_operator.v1", reason="pip install cloudcoil-models-prometheus-operator"
    )
    for document in rendered(values):
        if document["apiVersion"].startswith("monitoring"):
            model = getattr(v1, document["kind"]).model_validate(document)
            known = model.model_dump(by_alias=True, exclude_unset=True, mode="json")
            assert known["spec"] == document["spec"], document["metadata"]["name"]
        else:
            for version in ("1.25", "1.37"):
                validate.validate(document, version, strict=True)


def test_the_manifests_are_what_helm_makes_of_the_defaults() -> None:
    """Byte for byte."""
    for name, templates in chart.MANIFESTS.items():
        assert (chart.TARGET / name).read_text() == chart.render(templates), name


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kustomize_names_the_image() -> None:
    """And puts all into the namespace that it makes."""
    done = subprocess.run(["kubectl", "kustomize", chart.TARGET], text=True, capture_output=True, check=True)
    documents = list(yaml.safe_load_all(done.stdout))

    [pod] = [one["spec"]["template"]["spec"] for one in of_kind(documents, "DaemonSet")]
    assert pod["containers"][0]["image"].startswith("IMAGE:")
    assert {one["metadata"].get("namespace", "commwatch") for one in documents} == {"commwatch"}


@pytest.mark.parametrize(
    ("release", "overrides", "name"),
    [
        ("commwatch", {}, "commwatch"),
        ("my-commwatch", {}, "my-commwatch"),
        ("fabric", {}, "fabric-commwatch"),
        ("fabric", {"nameOverride": "links"}, "fabric-links"),
        ("fabric", {"nameOverride": "links", "fullnameOverride": "gpu"}, "gpu"),
        ("f" * 53, {}, f"{'f' * 53}-commwatch"),
        ("fabric", {"fullnameOverride": "g" * 70}, "g" * 63),
    ],
)
def test_names_of_resources(release: str, overrides: dict[str, str], name: str) -> None:
    """Those that users of other charts expect, none longer than Kubernetes admits."""
    values = {**IMAGE, "monitor": {"kind": "PodMonitor"}, "networkPolicy": {"enabled": True}, **overrides}
    done = helm("template", release, CHART, values=values)
    found = {one["metadata"]["name"] for one in yaml.safe_load_all(done.stdout) if one["kind"] != "Pod"}

    assert found == {name}
    assert len(name) <= 63


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_who_selects_the_pods(values: dict[str, Any]) -> None:
    """DaemonSet, Service, monitor and policy select the daemon's pods, and nothing selects that of helm test."""
    documents = rendered(values)
    [daemonset], [test] = of_kind(documents, "DaemonSet"), of_kind(documents, "Pod")
    pod = daemonset["spec"]["template"]["metadata"]["labels"]
    selectors = [
        *(one["spec"]["selector"]["matchLabels"] for one in (daemonset, *of_kind(documents, "PodMonitor"))),
        *(one["spec"]["selector"] for one in of_kind(documents, "Service")),
        *(one["spec"]["podSelector"]["matchLabels"] for one in of_kind(documents, "NetworkPolicy")),
    ]

    for selector in selectors:
        assert selector.items() <= pod.items()
        assert not selector.items() <= test["metadata"]["labels"].items()
    [service] = of_kind(documents, "Service")
    for monitor in of_kind(documents, "ServiceMonitor"):
        assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()


def test_either_monitor_gives_the_same_labels() -> None:
    """One in place of the other goes on with the same series."""
    relabelings = []
    for kind, key in (("PodMonitor", "podMetricsEndpoints"), ("ServiceMonitor", "endpoints")):
        [monitor] = of_kind(rendered({**IMAGE, "monitor": {"kind": kind}}), kind)
        [endpoint] = monitor["spec"][key]
        relabelings.append(endpoint["relabelings"])

    assert relabelings[0] == relabelings[1]


def test_the_policy_lets_those_in_that_it_names() -> None:
    """And the pod of helm test."""
    documents = rendered(ALL)
    [policy], [test] = of_kind(documents, "NetworkPolicy"), of_kind(documents, "Pod")
    [rule] = policy["spec"]["ingress"]

    assert rule["from"] == [*ALL["networkPolicy"]["from"], {"podSelector": {"matchLabels": test["metadata"]["labels"]}}]
    assert [port["port"] for port in rule["ports"]] == ["metrics"]


@pytest.mark.parametrize("status", [HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE])
def test_helm_test_asks_the_endpoint(status: HTTPStatus) -> None:
    """The command of its pod, against a real endpoint: it fails if the endpoint does."""
    asked = []

    def healthz(request: Request) -> Response:
        asked.append(request.path)
        return Response(status, b"")

    async def serve() -> int:
        async with serving(HttpServer({"/healthz": healthz}, Limits())) as port:
            [pod] = of_kind(rendered({**IMAGE, "fullnameOverride": "127.0.0.1", "port": port}), "Pod")
            program, *arguments = pod["spec"]["containers"][0]["command"]
            assert program == "/opt/commwatch/bin/python3"
            child = await asyncio.create_subprocess_exec(sys.executable, *arguments)
            return await child.wait()

    assert (asyncio.run(serve()) == 0) is (status is HTTPStatus.OK)
    assert asked == ["/healthz"]


def test_the_kubelet_needs_no_certificate() -> None:
    """Where clients need one, its probes and helm test only open the port; a request would fail, and end the pod."""
    documents = rendered({**IMAGE, "web": {"secretName": "w", "scheme": "HTTPS", "clientCertificates": True}})
    [daemonset], [test] = of_kind(documents, "DaemonSet"), of_kind(documents, "Pod")
    [container] = daemonset["spec"]["template"]["spec"]["containers"]

    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe].pop("tcpSocket") == {"port": "metrics"}
        assert "httpGet" not in container[probe]
    with socket.create_server(("127.0.0.1", 0)) as server:
        script = test["spec"]["containers"][0]["command"][-1]
        script = script.replace("fabric-commwatch", "127.0.0.1").replace("28029", str(server.getsockname()[1]))
        assert subprocess.run([sys.executable, "-I", "-c", script], check=False).returncode == 0
    assert subprocess.run([sys.executable, "-I", "-c", script], check=False, capture_output=True).returncode == 1


@pytest.mark.parametrize(
    ("values", "link"),
    [
        ({}, "http://{{ $labels.instance }}{{ if not (match `:` $labels.instance) }}:28029{{ end }}/runbooks"),
        (
            {"port": 9999, "web": {"secretName": "web", "scheme": "HTTPS"}},
            "https://{{ $labels.instance }}{{ if not (match `:` $labels.instance) }}:9999{{ end }}/runbooks",
        ),
        ({"prometheusRule": {"enabled": True, "runbooks": "https://w/r"}}, "https://w/r"),
    ],
    ids=["as shipped", "another port, TLS", "own address"],
)
def test_links_to_runbooks(values: dict[str, Any], link: str) -> None:
    """With the port and the scheme of the chart's endpoint, or where the site has them."""
    links = {
        rule["annotations"]["runbook_url"]
        for document in of_kind(rendered({**IMAGE, "prometheusRule": {"enabled": True}, **values}), "PrometheusRule")
        for group in document["spec"]["groups"]
        for rule in group["rules"]
        if rule.get("alert") == "CommwatchNvlinkDown"
    }

    assert links == {f"{link}/CommwatchNvlinkDown.md"}


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({}, "image.repository: the name of your image"),
        ({**IMAGE, "runAsUser": 65532}, "probes need runAsUser: 0"),
        ({**IMAGE, "monitor": {"enabled": True}}, "enabled"),
        ({**IMAGE, "monitor": {"kind": "Probe"}}, "kind"),
        ({**IMAGE, "networkPolicy": {"enabled": True, "from": []}}, "from"),
        ({**IMAGE, "port": 0}, "port"),
    ],
    ids=["no image", "probes without root", "misspelt", "no such monitor", "a policy for nobody", "no port"],
)
def test_wrong_values_are_refused_with_the_reason(values: dict[str, Any], why: str) -> None:
    """Before anything is installed."""
    done = helm("template", "fabric", CHART, values=values)
    assert done.returncode != 0
    assert why in done.stderr


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_the_configuration_is_one_of_commwatch(values: dict[str, Any], tmp_path: Path) -> None:
    """The file of the ConfigMap, and the kernel log just where the pod may read it."""
    [found] = [one for one in of_kind(rendered(values), "ConfigMap") if "commwatch.yaml" in one["data"]]
    for name, text in found["data"].items():
        (tmp_path / name).write_text(text.replace("/etc/commwatch", str(tmp_path)))
    config = yaml.safe_load(found["data"]["commwatch.yaml"])

    assert main(["check-config", "--config.file", str(tmp_path / "commwatch.yaml")]) == 0
    assert config["sources"]["kernel_log"]["enabled"] is values.get("privileged", False)


def test_without_probes_nothing_is_left_of_root() -> None:
    """No file of the node, no root, no memory for ranks."""
    [daemonset] = of_kind(rendered(CASES["no probes, no root, no state"]), "DaemonSet")
    pod = daemonset["spec"]["template"]["spec"]
    [container] = pod["containers"]

    assert not [one for one in pod["volumes"] if "hostPath" in one]
    assert (container["securityContext"]["runAsUser"], container["securityContext"]["runAsNonRoot"]) == (65532, True)
    assert {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"} in container["env"]


def test_rules_and_dashboards_are_the_shipped_ones_with_the_addresses_of_the_site(tmp_path: Path) -> None:
    """Each file is a resource; promtool accepts the rules; no address of the compose file is left."""
    documents = rendered(ALL)
    rules, maps = of_kind(documents, "PrometheusRule"), of_kind(documents, "ConfigMap")
    shipped = {path: yaml.safe_load(path.read_text()) for path in (ROOT / "alerts/rules").glob("*.yaml")}

    assert len(rules) == len(shipped)
    assert sum(len(one["spec"]["groups"]) for one in rules) == sum(len(one["groups"]) for one in shipped.values())
    assert "localhost:3000" not in yaml.safe_dump(rules)
    names = {name for one in maps for name in one["data"]}
    assert {path.name for path in (ROOT / "grafana/dashboards").iterdir()} < names
    if shutil.which("promtool"):
        for one in rules:
            path = tmp_path / f"{one['metadata']['name']}.yaml"
            path.write_text(yaml.safe_dump(one["spec"]))
        subprocess.run(["promtool", "check", "rules", *tmp_path.iterdir()], check=True, capture_output=True)


def test_a_changed_configuration_is_a_new_pod() -> None:
    """Its annotation changes with the settings and with the thresholds."""

    def checksum(**values: Any) -> str:
        [daemonset] = of_kind(rendered({**IMAGE, **values}), "DaemonSet")
        found: str = daemonset["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
        return found

    threshold = {"probe_latency_spike_streak": {"value": 4}}
    assert len({checksum(), checksum(config={"probes": {"gate": "off"}}), checksum(thresholds=threshold)}) == 3


def test_a_packed_chart_is_whole_and_fits_into_a_release(tmp_path: Path) -> None:
    """Links are files in it, and a release (chart and manifests) is a Secret, which holds 1 MiB."""
    subprocess.run([str(HELM), "package", CHART, "--destination", tmp_path], check=True, capture_output=True)
    [packed] = tmp_path.iterdir()
    with tarfile.open(packed) as archive:
        names = archive.getnames()

    assert "commwatch/files/rules/nvlink.yaml" in names
    assert "commwatch/files/dashboards/commwatch-node.json" in names
    # Base64 of both, each compressed: the manifests hold the same texts once more.
    assert packed.stat().st_size * 2 * 4 / 3 < 2**20


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="takes root, to give its capabilities away"
)
def test_the_rights_of_the_pod_are_enough_for_the_daemon(tmp_path: Path) -> None:
    """User 0 without capabilities on a file system that is read-only but for state and scratch: a probe is measured."""
    state, log = tmp_path / "state", tmp_path / "log"
    state.mkdir()
    confine = (
        "mount --make-rprivate / && mount -o remount,bind,ro / && exec setpriv --bounding-set=-all --inh-caps=-all"
    )
    run = [sys.executable, "-m", "commwatch", "run", "--simulate=a10x2", "--web.listen-address=127.0.0.1:0"]
    with log.open("wb") as output:
        daemon = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", f'{confine} --no-new-privs "$@"', "sh", *run, f"--path.state={state}"],
            env={**environment(), "TMPDIR": str(tmp_path)}, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        until(lambda: '"probe measured"' in log.read_text() or daemon.poll() is not None, describe=log.read_text)
        assert daemon.poll() is None, log.read_text()
        status = Path(f"/proc/{daemon.pid}/status").read_text()
    finally:
        daemon.terminate()
        daemon.wait()

    assert "CapBnd:\t0000000000000000" in status
    assert '"level": "error"' not in log.read_text()
