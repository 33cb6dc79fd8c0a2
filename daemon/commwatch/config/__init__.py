"""Configuration: typed settings, the YAML files and flags that they come from, thresholds, the endpoint's web file."""
