"""Opens the endpoint: on the addresses of the configuration, or on what systemd hands over."""

from __future__ import annotations

import structlog

from commwatch import __version__
from commwatch.config.settings import Web
from commwatch.errors import ListenError
from commwatch_exporters.listen import EndpointError, passed_sockets
from commwatch_exporters.web import Endpoint

log = structlog.get_logger("commwatch.service")


async def open_endpoint(endpoint: Endpoint, web: Web) -> None:
    """Listen.

    Raises:
        ListenError: an address or socket cannot be used.
    """
    try:
        passed = passed_sockets()
    except EndpointError as error:
        raise ListenError(str(error)) from error
    if web.systemd_socket and not passed:
        raise ListenError("web.systemd_socket is set, and systemd hands no socket over; start commwatch.socket")
    if passed and not web.systemd_socket:
        raise ListenError("systemd hands sockets over; set web.systemd_socket, or disable commwatch.socket")
    try:
        addresses = await endpoint.start(() if passed else web.listen_addresses, passed)
    except EndpointError as error:
        raise ListenError(f"{error}; choose another with --web.listen-address") from error
    log.info("serving", addresses=addresses, telemetry_path=web.telemetry_path, version=__version__)
