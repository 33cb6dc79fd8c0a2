"""Reading the configuration: what is accepted, and how each kind of bad input is answered."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml

from commwatch.config.settings import DEFAULT_PROBES, Config
from commwatch.config.yaml_file import Override, load_config, read_shipped
from commwatch.errors import ConfigError


def test_no_file_gives_the_defaults() -> None:
    """Every setting has a working default."""
    assert load_config(None) == Config()


def test_a_file_changes_what_it_names(tmp_path: Path) -> None:
    """Quantities carry their unit; what is not named keeps its default."""
    file = tmp_path / "commwatch.yaml"
    file.write_text(
        "web:\n  listen_addresses: ['127.0.0.1:9999']\n"
        "probes:\n  definitions:\n    ring: {interval: 1h30m, bandwidth_bytes: 1GB, expected_bandwidth: 100Gbit/s}\n"
    )

    config = load_config(file)

    assert config.web.listen_addresses == ("127.0.0.1:9999",)
    ring = config.probes.definitions["ring"]
    assert [ring.interval, ring.bandwidth_bytes, ring.expected_bandwidth or 0.0] == [5400.0, 10**9, 12.5e9]
    assert config.sources == Config().sources


def test_a_flag_goes_over_the_file(tmp_path: Path) -> None:
    """Flag over environment over file over default: the later override wins."""
    file = tmp_path / "commwatch.yaml"
    file.write_text("log: {level: error}\n")
    overrides = [
        Override(("log", "level"), "warning", "COMMWATCH_LOG_LEVEL"),
        Override(("log", "level"), "debug", "--log.level"),
    ]

    assert load_config(file, overrides[:1]).log.level == "warning"
    assert load_config(file, overrides).log.level == "debug"


@pytest.mark.parametrize(
    ("text", "line", "key", "problem"),
    [
        ("web:\n  listen_adresses: []\n", 2, "web.listen_adresses", "did you mean listen_addresses?"),
        ("log:\n  colour: red\n", 2, "log.colour", "known here: level, format"),
        ("probes:\n  occupancy_limit: much\n", 2, "probes.occupancy_limit", "expected a number; got text"),
        ("probes:\n  occupancy_limit: 0.5\n", 2, "probes.occupancy_limit", "expected a number <= 0.1; got 0.5"),
        (
            "probes:\n  gate: open\n",
            2,
            "probes.gate",
            "'open' is not possible; possible: auto, idle, kubernetes, off, slurm",
        ),
        ("probes:\n  start_delay: 15\n", 2, "probes.start_delay", "expected a duration with a unit"),
        (
            "probes:\n  definitions:\n    scalling: null\n",
            3,
            "probes.definitions.scalling",
            "takes out a default probe",
        ),
        ("probes:\n  definitions:\n    a: {}\n    b:\n      ranks: -1\n", 5, "probes.definitions.b.ranks", ">= 0"),
        (
            "inventory:\n  expected:\n    gpu: 8\n    gpus: 8\n",
            4,
            "inventory.expected.gpus",
            "'gpus' is not possible; possible: ethernet_port, gpu, nvlink, pcie_lane, rdma_port",
        ),
        ("log: {level: info}\nlog: {level: error}\n", 2, "log", "is already set in line 1"),
        ("web:\n  listen_addresses: [':1', 5]\n", 2, "web.listen_addresses[1]", "expected text; got a whole number"),
        ("web: {telemetry_path: /healthz}\n", 1, "web", "is the path of the health check"),
        ("web: {telemetry_path: /api/v1/findings}\n", 1, "web", "is a path of the API"),
        ("web: {telemetry_path: /still}\n", 1, "web", "is a path of the node's page"),
        (
            "web: {documentation: 'javascript:alert(1)'}\n",
            1,
            "web.documentation",
            "expected a URL that begins with http:// or https://",
        ),
        (
            "web: {documentation: 'https://docs.example/'}\n",
            1,
            "web.documentation",
            "expected a URL that begins with http:// or https://",
        ),
        ("web:\n  listen_addresses: [foo]\n", 1, "web", "'foo': expected HOST:PORT"),
        ("textfile:\n  path: /var/commwatch.txt\n", 2, "textfile.path", "got '/var/commwatch.txt'"),
        ("textfile:\n  path: commwatch.prom\n", 2, "textfile.path", "got 'commwatch.prom'"),
        ("process: {cpus: abc}\n", 1, "process.cpus", "expected numbers of cores, such as 0-1,64; got 'abc'"),
        ("probes:\n  definitions:\n    A: {}\n", 3, "probes.definitions.A", "expected a letter, then at most 31"),
        ("cluster: {users: ['a b']}\n", 1, "cluster.users[0]", "expected a name or number of a user; got 'a b'"),
        ("textfile: {interval: 500ms}\n", 1, "textfile", "interval must be at least 1s"),
        ("metrics: {otlp: {interval: 500ms}}\n", 1, "metrics.otlp", "interval must be at least 1s"),
        ("metrics: {otlp: {endpoint: 'collector:4317'}}\n", 1, "metrics.otlp.endpoint", "got 'collector:4317'"),
        ("metrics: {otlp: {endpoint: 'http://c:4318?a=b'}}\n", 1, "metrics.otlp.endpoint", "got 'http://c:4318?a=b'"),
        (
            "metrics: {otlp: {endpoint: 'http://a:b@c:4318'}}\n",
            1,
            "metrics.otlp",
            "endpoint takes no name and password;",
        ),
        ("sources:\n  network: {interval: 1ms}\n", 2, "sources.network", "interval must be at least 50ms"),
        (
            "sources:\n  nccl_logs: {paths: [logs]}\n",
            2,
            "sources.nccl_logs",
            "paths: 'logs' does not begin with /; name logs from the root",
        ),
        ("simulation: {preset: H100 x8}\n", 1, "simulation.preset", "'H100 x8'"),
        ("simulation: {faults: f.yaml}\n", 1, "simulation.faults", "--simulate h100x8"),
        ("a: &x [1]\nb: *x\n", 1, "", "is used again by an alias"),
        ('log:\n  level: "a\\0b"\n', 2, "log.level", "holds a NUL or half of a surrogate pair"),
        ('log:\n  "le\\udcffvel": info\n', 2, "log", "holds a NUL or half of a surrogate pair"),
        ("web: [1\n", 2, "", "is not valid YAML"),
        ("- a\n", 1, "", "expected settings as KEY: VALUE"),
        ("", None, "", "is empty"),
    ],
)
def test_bad_input_is_one_line_with_file_line_and_key(
    tmp_path: Path, text: str, line: int | None, key: str, problem: str
) -> None:
    """An operator sees where the mistake is and what would be right."""
    file = tmp_path / "bad.yaml"
    file.write_text(text)

    with pytest.raises(ConfigError) as caught:
        load_config(file)

    assert (caught.value.file, caught.value.line, caught.value.key) == (str(file), line, key)
    assert any(part in caught.value.problem for part in problem.split("|"))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("commwatch_nvlink_transmit_raw_bytes", "did you mean commwatch_nvlink_transmit_raw_bytes_total?"),
        ("commwatch_gpu_info", "docs/reference/metrics.md marks those that can"),
    ],
)
def test_a_metric_that_is_not_opt_in_is_named(tmp_path: Path, name: str, hint: str) -> None:
    """With the one that was meant, where one is like it."""
    file = tmp_path / "bad.yaml"
    file.write_text(f"metrics:\n  opt_in: [{name}]\n")

    with pytest.raises(ConfigError) as caught:
        load_config(file)

    assert caught.value.problem == f"opt_in: {name} is no metric that can be asked for; {hint}"


def test_a_file_that_is_not_there_or_not_text_is_named(tmp_path: Path) -> None:
    """The error names the file and the reason."""
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file"):
        load_config(tmp_path / "none.yaml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(tmp_path / "binary")


def test_a_file_without_end_is_not_read_to_it() -> None:
    """A device that somebody names by mistake would fill the memory."""
    with pytest.raises(ConfigError, match=r"zero: has more than 4 Mi characters"):
        load_config(Path("/dev/zero"))


def test_a_bad_flag_is_named_instead_of_the_file(tmp_path: Path) -> None:
    """The mistake is where the user made it."""
    with pytest.raises(ConfigError, match=r"^--log\.level: log\.level: 'loud' is not possible"):
        load_config(None, [Override(("log", "level"), "loud", "--log.level")])
    with pytest.raises(ConfigError, match=r"^--web\.listen-address: web\.listen_addresses: listen address 'here'"):
        load_config(None, [Override(("web", "listen_addresses"), ["here"], "--web.listen-address")])


def test_yaml_dates_and_other_types_do_not_break_the_loader(tmp_path: Path) -> None:
    """A value of a type that no setting has is an ordinary error."""
    file = tmp_path / "date.yaml"
    file.write_text("log:\n  level: 2026-01-01\n")

    assert yaml.safe_load(file.read_text())["log"]["level"].year == 2026
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert caught.value.line == 2


class _Fault(msgspec.Struct, forbid_unknown_fields=True):
    """What a shipped file of the tests has by number."""

    name: str
    severity: str = "info"


def test_a_shipped_file_may_say_what_entries_have_in_common(tmp_path: Path) -> None:
    """By aliases and merge keys; what an entry says itself holds, wherever it stands."""
    file = tmp_path / "data.yaml"
    file.write_text("7: &seven {name: a, severity: warning}\n8: *seven\n9: {name: b, <<: *seven}\n")

    assert read_shipped(file, dict[int, _Fault]) == {
        7: _Fault("a", "warning"), 8: _Fault("a", "warning"), 9: _Fault("b", "warning"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("7: {name: a}\n8:\n  severity: info\n", "2: 8.name: is missing"),
        ("7: {name: a}\n8:\n  nam: info\n", "3: 8.nam: unknown key; did you mean name?"),
        ("7:\n  name: [a]\n", "2: 7.name: expected text; got a list"),
        ("7:\n  name: 'a\n", "is not valid YAML"),
    ],
)
def test_a_mistake_in_a_shipped_file_is_named_as_one_of_the_user(tmp_path: Path, text: str, problem: str) -> None:
    """With file, line and key."""
    file = tmp_path / "data.yaml"
    file.write_text(text)

    with pytest.raises(ConfigError, match=r"data\.yaml:") as caught:
        read_shipped(file, dict[int, _Fault])
    assert problem in str(caught.value)


def test_a_shipped_file_may_be_read_as_text_alone(tmp_path: Path) -> None:
    """Then a PCI address is none to the base 60, and numbers and truth values are still read where they are wanted."""
    file = tmp_path / "data.yaml"
    file.write_text("device: 0000:21:00.0\ncount: 3\nfast: false\n")

    assert read_shipped(file, dict[str, str], texts_only=True)["device"] == "0000:21:00.0"
    file.write_text("count: 3\n")
    assert read_shipped(file, dict[str, int], texts_only=True) == {"count": 3}


def test_probes_are_merged_by_name(tmp_path: Path) -> None:
    """A default probe keeps what the file does not name; null takes it out; another name is one more."""
    file = tmp_path / "commwatch.yaml"
    file.write_text("probes: {definitions: {pairs: {interval: 6h}, scaling: null, ring: {ranks: 4}}}\n")
    probes = load_config(file).probes.definitions

    assert probes.keys() == {*DEFAULT_PROBES, "ring"} - {"scaling"}
    assert (probes["pairs"].measure, float(probes["pairs"].interval)) == ("pairs", 21_600.0)
    assert probes["all_reduce"] == DEFAULT_PROBES["all_reduce"]
