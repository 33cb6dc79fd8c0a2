"""A probe among nodes in network namespaces, each with a state directory of its own."""

from __future__ import annotations

from pathlib import Path

import msgspec

from commwatch.cluster.environment import DEFAULT_PORT, Place
from commwatch.cluster.member import Progress, Run
from commwatch.cluster.probe_store import ProbeResult
from commwatch.cluster.probing import Asked, probe
from commwatch.config.settings import Config
from support.namespaces import Nodes

TCP = Asked(backend="tcp")


def probed(nodes: Nodes, asked: Asked = TCP, size: int | None = None) -> ProbeResult:
    """What member 0 says; all members have its exit code."""
    size = size or nodes.count
    names = tuple(f"node{node}" for node in range(size))

    async def member(node: int) -> ProbeResult | int:
        place = Place("members", node, size, names[0], DEFAULT_PORT, names)
        run = Run(place, b"the key of this run", {}, Path("/nowhere"))
        config = Config()
        paths = msgspec.structs.replace(config.paths, state=str(nodes.folder / f"state{node}"))
        config = msgspec.structs.replace(config, paths=paths)
        return await probe(run, asked, config, Progress(lambda text: None))

    found = nodes.run(member, range(size))
    result = found[0]
    assert isinstance(result, ProbeResult)
    assert {found[node] for node in range(1, size) if node in found} == {result.exit_code}
    return result
