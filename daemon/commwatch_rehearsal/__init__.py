"""Simulated nodes, their faults and the fire drill: a rehearsal of commwatch, which does not import it."""
