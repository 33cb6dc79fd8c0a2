"""A kubelet that answers as a test says: a real gRPC server on a unix socket, with messages encoded by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

LIST = "/v1.PodResourcesLister/List"


def field(number: int, content: str | bytes) -> bytes:
    """A field of a protobuf message whose content has a length: a string, or a message."""
    data = content.encode() if isinstance(content, str) else content
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def devices(resource: str, *ids: str) -> bytes:
    """ContainerResources.devices with a topology (field 3), which nobody asks for."""
    return field(2, field(1, resource) + b"".join(field(2, one) for one in ids) + field(3, field(1, b"\x08\x01")))


def claim(name: str, *drivers: str) -> bytes:
    """ContainerResources.dynamic_resources; a driver of "" is a device whose driver is not named."""
    resources = b"".join(
        field(4, field(1, field(1, "nvidia.com/gpu=0")) + (field(2, one) if one else b"")) for one in drivers
    )
    return field(5, field(2, name) + field(3, "default") + resources)


def pod(name: str, *resources: bytes, namespace: str = "default") -> bytes:
    """ListPodResourcesResponse.pod_resources with one container, which has two CPUs (field 3, packed)."""
    container = field(1, "main") + b"".join(resources) + field(3, b"\x00\x01")
    return field(1, field(1, name) + field(2, namespace) + field(3, container))


@contextmanager
def kubelet(path: Path, answer: Callable[[], bytes], method: str = LIST) -> Iterator[None]:
    """Serve ``answer`` at a socket; other methods are not known, as to a kubelet of another version."""

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # gRPC has no types
        def service(self, details: Any) -> Any:
            if details.method != method:
                return None
            return grpc.unary_unary_rpc_method_handler(lambda request, context: answer())

    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, handlers=[Handler()])
        server.add_insecure_port(f"unix:{path}")
        server.start()
        try:
            yield
        finally:
            server.stop(None).wait()
