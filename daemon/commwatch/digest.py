"""SHA-256 without libcrypto, which hashlib loads: 2 MiB of memory in each process."""

from __future__ import annotations

# The way of the standard library's own random module: the lean internal module first, hashlib where it is missing.
try:
    from _sha256 import sha256  # type: ignore[import-not-found]  # up to Python 3.11
except ImportError:
    try:
        from _sha2 import sha256  # type: ignore[import-not-found]  # from Python 3.12 on
    except ImportError:
        from hashlib import sha256


def sha256_hex(data: bytes) -> str:
    """The SHA-256 of some bytes in hex digits."""
    return str(sha256(data).hexdigest())
