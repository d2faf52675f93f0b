"""Keep jobs running: what should run, what does run, and what to do about the difference."""
