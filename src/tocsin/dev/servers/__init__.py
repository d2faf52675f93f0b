"""The servers of the embedded stack, on loopback."""
