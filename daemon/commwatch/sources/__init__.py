"""Sources: one module or package per origin; each knows its driver or file format and nothing of the rest."""
