"""One probe cycle: its ranks, what they measure, and how their words become a verdict."""
