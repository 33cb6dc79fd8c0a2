"""What a drill asks of Prometheus and Alertmanager, answered by scripted servers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from commwatch_rehearsal.drill.pace import SHIPPED
from commwatch_rehearsal.drill.programs import DrillError
from commwatch_rehearsal.drill.servers import AlertmanagerApi, PrometheusApi, find_program
from commwatch_rehearsal.drill.stage import Given, Stage
from support.handler_server import serving
from support.passes import in_one_pass

ALERT = {
    "fingerprint": "1",
    "labels": {"alertname": "A", "instance": "drill-a", "simulated": "true"},
    "receivers": [{"name": "drill"}],
    "startsAt": "1970-01-01T00:00:07.000Z",
}


@contextmanager
def answering(answers: Mapping[str, Any]) -> Iterator[str]:
    """A server that answers paths (without their query) with JSON, and 503 to all others."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            body = json.dumps(answers.get(path)).encode()
            self.send_response(200 if path in answers else 503)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            del format, args

    with serving(Handler) as address:
        yield f"http://{address}"


def test_alerts_that_come_and_go_in_a_given_alertmanager_are_notices() -> None:
    """Each once when it is there first, and once when it is gone; below a path of the server."""
    answers = {"/am/api/v2/alerts": [ALERT]}
    with answering(answers) as url:
        api = AlertmanagerApi(
            f"{url}/am/",
        )
        (begun,) = api.take(9.0)
        assert (begun.receiver, begun.at, begun.resolved, begun.started_at) == ("drill", 9.0, False, 7.0)
        assert begun.labels["instance"] == "drill-a"
        assert api.take(10.0) == []
        answers["/am/api/v2/alerts"] = []
        (ended,) = api.take(11.0)
        assert (ended.at, ended.resolved) == (11.0, True)
        assert api.take(12.0) == []


def test_only_alerts_that_fire_and_targets_that_answer_count() -> None:
    """Pending alerts and targets without a scrape are left out."""
    alerts = [{"state": state, "labels": {"alertname": state}} for state in ("firing", "pending")]
    targets = [{"health": health, "labels": {"instance": health}} for health in ("up", "unknown", "down")]
    answers = {
        "/api/v1/alerts": {"data": {"alerts": alerts}},
        "/api/v1/targets": {"data": {"activeTargets": targets}},
        "/api/v1/rules": {"data": {"groups": [{"rules": [{"name": "A", "keepFiringFor": 600}, {"name": "B"}]}]}},
    }
    with answering(answers) as url:
        api = PrometheusApi(url)
        assert [one["alertname"] for one in api.firing()] == ["firing"]
        assert api.scraped() == {"up"}
        assert api.rules() == {"A": 600.0, "B": 0.0}


def test_a_server_that_does_not_answer_ends_the_drill() -> None:
    """Exit code 3, with its address and what it said."""
    with answering({}) as url:
        with pytest.raises(DrillError, match=f"Prometheus at {url} answers 503") as caught:
            PrometheusApi(url).firing()
        assert caught.value.exit_code == 3
    with pytest.raises(DrillError, match="does not answer"):
        PrometheusApi(url).firing()


@in_one_pass("url", ["localhost:9090", "ftp://host", "http://host:port", "http://host:99999", ""])
def test_what_is_no_address_is_refused(url: str) -> None:
    """With an example of one."""
    with pytest.raises(DrillError, match="no address such as"):
        PrometheusApi(url)


def test_a_program_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the two ways out."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DrillError, match="prometheus is not installed; install it, or name a running one"):
        find_program("prometheus")


def test_a_drill_that_lacks_one_of_two_servers_starts_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alertmanager is there and Prometheus is not: it is named at once, and no folder is left."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/alertmanager"
    program.write_text("#!/bin/sh\ntouch started\n")
    program.chmod(0o755)
    with pytest.raises(DrillError, match="prometheus is not installed"):
        Stage(SHIPPED, Given())
    assert list((tmp_path / "tmp").iterdir()) == []


ANSWERS = {
    "/api/v2/alerts": [],
    "/api/v1/rules": {"data": {"groups": []}},
    "/api/v1/status/buildinfo": {"data": {"version": "3"}},
}


def test_nodes_are_listed_for_a_given_prometheus_and_the_list_is_gone_afterwards(tmp_path: Path) -> None:
    """Readable by the user as whom Prometheus runs; one that was there before is left empty."""
    file = tmp_path / "drill.json"
    with answering(ANSWERS) as url:
        for before in (None, "[]", '[{"targets": ["a:1"], "labels": {"instance": "drill-left-by-a-kill"}}]'):
            if before is not None:
                file.write_text(before)
            stage = Stage(SHIPPED, Given(url, url, str(file)))
            try:
                stage.begin({"drill-a": "127.0.0.1:1"})
                assert json.loads(file.read_text()) == [{"targets": ["127.0.0.1:1"], "labels": {"instance": "drill-a"}}]
                assert file.stat().st_mode & 0o777 == 0o644
            finally:
                stage.close()
            assert [one.name for one in tmp_path.iterdir()] == ([] if before is None else ["drill.json"])
            assert before is None or json.loads(file.read_text()) == []


@pytest.mark.parametrize(
    "text", ['[{"targets": ["node1:28029"]}]', '[{"targets": [], "labels": {"instance": "n"}}]', "x"]
)
def test_a_list_of_other_targets_is_left_alone(tmp_path: Path, text: str) -> None:
    """The targets of a site would be lost."""
    file = tmp_path / "targets.json"
    file.write_text(text)
    with answering(ANSWERS) as url, pytest.raises(DrillError, match="give the drill a file of its own"):
        Stage(SHIPPED, Given(url, url, str(file)))
    assert file.read_text() == text


def test_a_given_alertmanager_must_answer_also_where_it_posts_to_the_drill(tmp_path: Path) -> None:
    """Else each drill would wait for its page in vain."""
    with answering(ANSWERS) as url:
        pass
    with pytest.raises(DrillError, match=f"Alertmanager at {url} does not answer"):
        Stage(SHIPPED, Given(url, url, str(tmp_path / "drill.json"), "127.0.0.1:0"))


def test_a_receiver_whose_port_is_taken_is_an_error(tmp_path: Path) -> None:
    """Exit code 3, with the address."""
    with answering(ANSWERS) as url:
        address = url.removeprefix("http://")
        with pytest.raises(DrillError, match=f"--receiver {address}: .*in use"):
            Stage(SHIPPED, Given(url, url, str(tmp_path / "drill.json"), address))
    assert list(tmp_path.iterdir()) == []
