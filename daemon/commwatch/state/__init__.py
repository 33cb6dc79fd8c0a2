"""What outlives the daemon or reaches it from outside: state directory, control socket, maintenance."""
