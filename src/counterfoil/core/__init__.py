"""Pure decisions: data in, data out. Nothing below imports a clock, entropy, I/O or a framework."""
