"""The pair matrices that the daemon has kept."""

from __future__ import annotations

from commwatch.config.settings import DAY, Config
from commwatch.node.topology.pair_matrix import PairMatrix
from commwatch.probes.results.pair_record import load_matrices
from commwatch.state.directory import state_path


def last_matrix(config: Config) -> PairMatrix | None:
    """The newest matrix in the state directory, however old; None without any that can be read."""
    return max(load_matrices(state_path(config)), key=lambda one: one.taken_at, default=None)


def pairs_interval(config: Config) -> float:
    """Seconds between two cycles over pairs, of the probe that measures them most rarely."""
    found = [float(one.interval) for one in config.probes.definitions.values() if one.measure == "pairs"]
    return max(found, default=float(DAY))
