"""PCI devices and the links to them: ``/sys/bus/pci/devices``; their errors as AER counts them."""
