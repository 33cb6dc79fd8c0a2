"""A diagnosis in the order of an expert: checks by branch, the verdict of all, and its presentation."""
