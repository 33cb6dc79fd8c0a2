"""The pair matrix of a manual cycle, with its first suspects, and the matrices that the daemon has kept."""

from __future__ import annotations

import msgspec

from commwatch.config.settings import DAY, Config, Probe
from commwatch.node.topology.pair_matrix import PairMatrix
from commwatch.probes.plan import Measure, Measured
from commwatch.probes.prospect import Prospect
from commwatch.probes.results.culprit import find_suspects
from commwatch.probes.results.pair_record import are_firm, load_matrices, matrix_of
from commwatch.state.directory import state_path

FIRST_SIGHT = "Measure again before you act."


def first_sight(result: Measured, prospect: Prospect) -> PairMatrix:
    """The matrix of a single cycle, with suspects whose words state that it is the only one."""
    matrix = matrix_of(result, prospect)
    if not all(end.device for end in matrix.endpoints):
        return matrix  # ranks of one host do not measure a fabric
    firm = are_firm(prospect.expected_of_pairs.values())
    found = find_suspects([matrix], prospect.parts, firm_expected=firm, fewest=1)
    suspects = tuple(msgspec.structs.replace(one, words=f"{one.words.rstrip('.')}. {FIRST_SIGHT}") for one in found)
    return msgspec.structs.replace(matrix, suspects=suspects)


def of_measure(config: Config, measure: Measure) -> dict[str, Probe]:
    """The configured probes that measure something; without one, one with the default settings."""
    found = {name: probe for name, probe in config.probes.definitions.items() if probe.measure == measure}
    return found or {measure: Probe(measure=measure)}


def last_matrix(config: Config) -> PairMatrix | None:
    """The newest matrix in the state directory, however old; None without any that can be read."""
    return max(load_matrices(state_path(config)), key=lambda one: one.taken_at, default=None)


def pairs_interval(config: Config) -> float:
    """Seconds between two cycles over pairs, of the probe that measures them most rarely."""
    found = [float(one.interval) for one in config.probes.definitions.values() if one.measure == "pairs"]
    return max(found, default=float(DAY))
