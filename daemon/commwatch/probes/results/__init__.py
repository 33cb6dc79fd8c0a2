"""Evaluation of probe results: records, baselines, drift, slow pairs and their culprit."""
