"""What results of probes mean: records, baselines, drift, slow pairs and their culprit."""
