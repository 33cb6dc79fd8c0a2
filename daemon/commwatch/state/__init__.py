"""State that outlives the daemon and its outside interfaces: state directory, control socket, maintenance."""
