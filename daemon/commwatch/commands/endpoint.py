"""Options of the commands that ask the endpoints of daemons: who we are, and whom we trust."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from commwatch.commands.command import option
from commwatch.errors import UsageError

if TYPE_CHECKING:
    import ssl

CREDENTIALS = (
    option("--ca-file", metavar="FILE", default="", help="authorities to trust (default: the system's)"),
    option("--cert-file", metavar="FILE", default="", help="client certificate"),
    option("--key-file", metavar="FILE", default="", help="its key (default: in the same file)"),
    option("--user", metavar="NAME", default="", help="name for basic authentication"),
    option("--password-file", metavar="FILE", type=Path, help="file with the password (default: prompt)"),
)
OF_ENDPOINTS = ("ca_file", "cert_file", "key_file", "user", "password_file")
"""The attributes of these options."""


def credentials(args: argparse.Namespace) -> tuple[ssl.SSLContext, str]:
    """The context for TLS, and the header for basic authentication, empty for none.

    Raises:
        UsageError: a file or name cannot be used.
    """
    from commwatch.views.top.daemon import basic_authorization, read_password, tls_context

    authorization = ""
    if args.user:
        if ":" in args.user:
            raise UsageError("--user: a name without a colon; the password comes from --password-file or is asked for")
        password = read_password(args.password_file) if args.password_file else _asked_password(args.user)
        authorization = basic_authorization(args.user, password)
    return tls_context(args.ca_file, args.cert_file, args.key_file), authorization


def _asked_password(user: str) -> str:
    import getpass

    if not sys.stdin.isatty():
        raise UsageError("--user needs --password-file where no one can be asked")
    return getpass.getpass(f"Password of {user}: ")
