"""A node that does not exist: presets, faults, a driver library and a sysfs tree made from them."""
