"""Which serving software a process tree runs, and what its own `/metrics` says. Only the loopback is ever asked."""
