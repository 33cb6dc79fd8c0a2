"""Texts without what looks like a secret: addresses with a password, keys and tokens by their names; pure."""

from __future__ import annotations

import re
from typing import Any, Final

LEFT_OUT: Final = "(left out)"

_SECRET: Final = r"(?:passw(?:or)?d|passphrase|secret|token|api_?key|private_?key|credential|psk|webhook)"  # noqa: S105 - names only
_SECRET_NAME: Final = re.compile(_SECRET, re.IGNORECASE)
_NAME: Final = rf"{_SECRET}[\w.-]{{0,64}}"
"""From the telling word on, and of bounded length: a text without blanks is not looked through from each place."""
_VALUE: Final = r"""(?:"[^"\\\n]*"|'[^'\\\n]*'|\\"[^"\\\n]*\\"|[^\s"'\\,;}\]]+)"""

_PATTERNS: Final = (
    # https://user:password@host
    (re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30}://)[^/\s\"'\\@]{1,512}@"), rf"\1{LEFT_OUT}@"),
    # "api_key": "..." of JSON
    (re.compile(rf"({_NAME}\"\s*:\s*)\"(?:[^\"\\]|\\.)*\"", re.IGNORECASE), rf'\1"{LEFT_OUT}"'),
    # API_KEY=... and api_key: ..., quoted or not, also within a text of JSON, where quotes are escaped
    (re.compile(rf"({_NAME}\s*[=:]\s*)(?!\(left out\)){_VALUE}", re.IGNORECASE), rf"\1{LEFT_OUT}"),
    (re.compile(r"(\bauthorization\s*[=:]\s*)[^\r\n\"\\]+", re.IGNORECASE), rf"\1{LEFT_OUT}"),
    (re.compile(r"(\bbearer\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE), rf"\1{LEFT_OUT}"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), LEFT_OUT),
)


def without_secrets(text: str) -> tuple[str, int]:
    """A text without what looks like a secret, and how many places that were."""
    count = 0
    for pattern, instead in _PATTERNS:
        text, found = pattern.subn(instead, text)
        count += found
    return text, count


def settings_without_secrets(value: Any, name: str = "") -> Any:
    """Plain settings without the values of keys that are called as secrets are; their structure stays."""
    if isinstance(value, dict):
        return {key: settings_without_secrets(one, str(key)) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [settings_without_secrets(one, name) for one in value]
    return LEFT_OUT if value and isinstance(value, str) and _SECRET_NAME.search(name) else value
