"""What looks like a secret is left out, and nothing else."""

from __future__ import annotations

import json
import time

from commwatch.diagnosis.bundle import settings_without_secrets, without_secrets
from support.passes import in_one_pass


@in_one_pass(
    "text",
    [
        "proxy https://bob:hunter2@proxy:3128/x",
        "NCCL_PSK=hunter2 NCCL_DEBUG=WARN",
        "API_TOKEN: hunter2",
        'password = "hunter2"',
        '{"webhook_url": "hunter2"}',
        "Authorization: Bearer hunter2hunter2",
        "authorization=Basic hunter2",
        "curl -H 'bearer hunter2hunter2'",
        "-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nhunter2",
    ],
)
def test_a_secret_is_left_out(text: str) -> None:
    """By its name, its form, or its place in an address."""
    found, count = without_secrets(text)

    assert "hunter2" not in found
    assert "(left out)" in found
    assert count >= 1


@in_one_pass(
    "text",
    [
        "Product Name : NVIDIA H100 80GB HBM3",
        "[    1.0] NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.",
        "ssh to bob@node7 or http://node7:28029/metrics",
        '{"token_count": 5, "secrets_removed": 0, "name": "x"}',
        "LnkSta: Speed 16GT/s, Width x16",
    ],
)
def test_all_else_stays(text: str) -> None:
    """Addresses without a password, numbers, and whatever a vendor reads."""
    assert without_secrets(text) == (text, 0)


@in_one_pass("piece", ["a", "a.", "a-", "a://", "password", '"', "BEGIN PRIVATE KEY-----", " "])
def test_a_long_text_takes_no_time(piece: str) -> None:
    """Whatever it repeats: time grows with its length, not with the square of it."""
    begun = time.process_time()
    without_secrets(piece * (200_000 // len(piece)))

    assert time.process_time() - begun < 10, "a search that grows with the square takes minutes"


def test_json_stays_json() -> None:
    """Whatever stands around the secret, quotes and escapes included."""
    value = {"api_key": 'hunter2"\\x', "url": "https://bob:hunter2@x/y", "list": ['SECRET="hunter2"', "b"], "n": 1}

    found = json.loads(without_secrets(json.dumps(value))[0])
    assert "hunter2" not in str(found)
    assert (list(found), found["n"], found["list"][1]) == (list(value), 1, "b")


def test_settings_keep_their_structure() -> None:
    """Values of keys that are called as secrets are go, at any depth; numbers, empty texts and the rest stay."""
    settings = {
        "a": {"password": "hunter2", "token": "", "port": 5},
        "webhooks": ["hunter2"],
        "probes": {"secret": {"x": 1}},
    }

    assert settings_without_secrets(settings) == {
        "a": {"password": "(left out)", "token": "", "port": 5},
        "webhooks": ["(left out)"],
        "probes": {"secret": {"x": 1}},
    }
