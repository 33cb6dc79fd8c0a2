"""The output of commwatch: the catalogue of metrics, the snapshot and its exporters."""
