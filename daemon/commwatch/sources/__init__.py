"""Sources: one module or package per origin; each knows only its driver or file format."""
