"""The pieces of a bundle that come from the daemon, and from what it has kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import msgspec
import yaml

from commwatch.config.settings import Config, encode_quantity
from commwatch.diagnosis.bundle import Found, LeftOut, Piece
from commwatch.diagnosis.document import Diagnosis
from commwatch.diagnosis.identity import Identity
from commwatch.diagnosis.known import Known
from commwatch.diagnosis.report import report
from commwatch.diagnosis.secret_texts import settings_without_secrets
from commwatch.diagnosis.text import diagnosis_lines
from commwatch.lines import plain
from commwatch.probes.results.pair_record import load_matrices
from commwatch.state.directory import state_path

_DAEMON = "the daemon"


def document_pieces(known: Known, document: Diagnosis, identity: Identity, config: Config) -> Iterator[Piece]:
    """What is known without asking the machine again.

    Args:
        known: what the diagnosis stands on.
        document: the diagnosis.
        identity: of the node.
        config: in force for this command.
    """
    low_ratio = known.thresholds.probe_bandwidth_utilization_low_ratio
    text = "\n".join(plain(line) for line in diagnosis_lines(document, every=True))
    yield Piece(name="diagnosis.txt", source="commwatch diagnose --all", text=f"{text}\n")
    yield Piece(name="diagnosis.json", source="commwatch diagnose --json", text=_json(document))
    yield Piece(name="report.html", source="commwatch diagnose --report", text=report(document, identity, low_ratio))
    yield Piece(name="versions.json", source=_DAEMON, text=_json(identity))
    yield Piece(name="findings.json", source=_DAEMON, text=_json(known.findings))
    yield Piece(name="score.json", source=_DAEMON, text=_json(known.score))
    yield Piece(name="snapshot.json", source=f"{_DAEMON}: every series", text=_json(known.snapshot))
    if known.settings is not None:
        text = _json(known.settings)
        yield Piece(name="settings.json", source=f"{_DAEMON}: NCCL settings of jobs by name, without values", text=text)
    limits = {"digest": known.thresholds.digest, **asdict(known.thresholds)}
    yield Piece(name="thresholds.json", source="alerts/thresholds.yaml and the file above it", text=_json(limits))
    settings = settings_without_secrets(msgspec.to_builtins(config, enc_hook=encode_quantity))
    yield Piece(
        name="configuration.yaml",
        source="the settings in force for this command: file, environment and flags together",
        text=yaml.safe_dump(settings, sort_keys=False, allow_unicode=True),
    )


def matrix_pieces(config: Config) -> Iterator[Found]:
    """The last pair matrices that the daemon has kept, however old."""
    matrices = load_matrices(state_path(config))
    source = "the state directory: the last pair matrices, oldest first"
    if matrices:
        yield Piece(name="pairs.json", source=source, text=_json(matrices))
    else:
        yield LeftOut("pairs.json", source, "no pairs were measured")


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=encode_quantity)).decode() + "\n"
