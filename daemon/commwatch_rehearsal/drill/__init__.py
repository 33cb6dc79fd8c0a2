"""The fire drill: faults on simulated nodes, and the pages that they must end as."""
