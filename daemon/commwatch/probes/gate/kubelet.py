"""Asks the kubelet for the devices of this node's pods, over the pod-resources socket, in a child process.

``commwatch.probes.gate.kubelet SOCKET SECONDS`` prints the answer as JSON. gRPC is far too heavy for the daemon.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from commwatch.children import clean_environment, own_module
from commwatch.probes.gate.decision import SchedulerAnswer
from commwatch.workers.one_shot import NoAnswer, ask

_LIST = "/v1.PodResourcesLister/List"
_RESOURCE_PREFIX = "nvidia.com/"
"""Resources of NVIDIA's device plugin: ``gpu``, ``gpu.shared``, ``mig-1g.10gb``, ..."""
_DRIVER_SUFFIX = "nvidia.com"
"""Drivers of NVIDIA for dynamic resource allocation: ``gpu.nvidia.com``, ``compute-domain.nvidia.com``."""
_LARGEST_ANSWER_BYTES = 16 * 2**20
"""Most bytes that the kubelet itself sends."""
_START_SECONDS = 2.0
"""Beyond the deadline of the call: the child imports gRPC first."""


async def ask_kubelet(path: Path, deadline: float) -> SchedulerAnswer:
    """Whether a pod has a GPU of this node.

    Args:
        deadline: seconds that the kubelet has.
    """
    environment = {**clean_environment(os.environ), "GRPC_VERBOSITY": "NONE"}
    command = own_module("commwatch.probes.gate.kubelet", str(path), f"{deadline:g}")
    try:
        answer = await ask(command, environment, deadline + _START_SECONDS)
    except NoAnswer as error:
        return SchedulerAnswer("unknown", f"the kubelet cannot be asked: {error}")
    try:
        return msgspec.json.decode(answer.output, type=SchedulerAnswer)
    except (ValueError, RecursionError):
        return SchedulerAnswer("unknown", f"the kubelet cannot be asked: {answer.last_error}")


# --- in the child ---

_FIELDS: Final[dict[str, tuple[tuple[str, int, str], ...]]] = {
    "ListPodResourcesRequest": (),
    "ListPodResourcesResponse": (("pod_resources", 1, "PodResources"),),
    "PodResources": (("name", 1, ""), ("namespace", 2, ""), ("containers", 3, "ContainerResources")),
    "ContainerResources": (("devices", 2, "ContainerDevices"), ("dynamic_resources", 5, "DynamicResource")),
    "ContainerDevices": (("resource_name", 1, ""),),
    "DynamicResource": (("claim_name", 2, ""), ("claim_resources", 4, "ClaimResource")),
    "ClaimResource": (("driver_name", 2, ""),),
}
"""Of each message of v1 what is asked for: name, number and message of a field; without a message it is a string, with
one it is repeated. Source: k8s.io/kubelet/pkg/apis/podresources/v1/api.proto of Kubernetes 1.20 to 1.34."""


def _message_classes() -> dict[str, Any]:  # protobuf has no types
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="podresources.proto", package="v1", syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            added = message.field.add(name=field, number=number)
            added.label = kinds.LABEL_REPEATED if kind else kinds.LABEL_OPTIONAL
            added.type = kinds.TYPE_MESSAGE if kind else kinds.TYPE_STRING
            if kind:
                added.type_name = f".v1.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v1.{name}")) for name in _FIELDS}


def _held(pods: Iterable[Any]) -> Iterator[tuple[str, str]]:  # messages built above
    """Pod, ``namespace/name``, and what it has that is, or may be, a GPU: a claim whose drivers are not known is taken
    for one."""
    for pod in pods:
        name = f"{pod.namespace}/{pod.name}"
        for container in pod.containers:
            for device in container.devices:
                if device.resource_name.startswith(_RESOURCE_PREFIX):
                    yield name, device.resource_name
            for claim in container.dynamic_resources:
                drivers = [one.driver_name for one in claim.claim_resources if one.driver_name]
                if not drivers or any(driver.endswith(_DRIVER_SUFFIX) for driver in drivers):
                    yield name, f"claim {claim.claim_name}"


def _answer_of(pods: Iterable[Any]) -> SchedulerAnswer:
    """Free where no container has a GPU."""
    held = list(_held(pods))
    if not held:
        return SchedulerAnswer("free")
    (pod, resource), count = held[0], len({pod for pod, _ in held})
    more = f"; {count} pods have GPUs" if count > 1 else ""
    return SchedulerAnswer("busy", f"pod {pod} has {resource}{more}")


def read_kubelet(path: str, deadline: float) -> SchedulerAnswer:
    """Ask the kubelet; blocks, at most for the deadline in seconds."""
    try:
        import google.protobuf  # noqa: F401 - only whether it is there
        import grpc
    except ImportError as error:
        return SchedulerAnswer("unknown", f"the kubelet cannot be asked: {error}; install commwatch[kubernetes]")
    if problem := _cannot_connect(path, deadline):
        return SchedulerAnswer("unknown", problem)
    classes = _message_classes()
    options = [
        # The path as authority, which gRPC would take, is refused by the kubelet's library.
        ("grpc.default_authority", "localhost"),
        ("grpc.enable_http_proxy", 0),
        ("grpc.max_receive_message_length", _LARGEST_ANSWER_BYTES),
    ]
    with grpc.insecure_channel(f"unix:{path}", options=options) as channel:
        call = channel.unary_unary(
            _LIST,
            request_serializer=classes["ListPodResourcesRequest"].SerializeToString,
            response_deserializer=classes["ListPodResourcesResponse"].FromString,
        )
        try:
            answer = call(classes["ListPodResourcesRequest"](), timeout=deadline)
        except grpc.RpcError as error:
            return SchedulerAnswer("unknown", _failure(path, deadline, error.code().name, error.details() or ""))
    return _answer_of(answer.pod_resources)


def _cannot_connect(path: str, deadline: float) -> str:
    """The reason why a socket path cannot be connected to, which gRPC would call "unavailable"; empty if it can."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(deadline)
        try:
            connection.connect(path)
        except FileNotFoundError:
            return f"there is no kubelet socket {path}; set probes.kubelet_socket, and in a container mount its folder"
        except PermissionError:
            return f"the kubelet socket {path} may not be opened by this user; run as root, or as a user of its group"
        except OSError as error:
            return f"the kubelet socket {path}: {error.strerror or error}; see that the kubelet runs"
    return ""


def _failure(path: str, deadline: float, code: str, details: str) -> str:
    if code == "UNIMPLEMENTED":
        return "this kubelet does not serve version 1 of pod-resources, which Kubernetes has from 1.20 on"
    if code == "DEADLINE_EXCEEDED":
        return f"the kubelet gave no answer at {path} in {deadline:g} s; raise probes.scheduler_deadline if it is slow"
    return f"the kubelet at {path} answered {code}: {details}"


def main(arguments: Sequence[str]) -> None:
    """Print the kubelet's answer."""
    path, deadline = arguments
    sys.stdout.write(msgspec.json.encode(read_kubelet(path, float(deadline))).decode() + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
