"""Try on a real broker what Tocsin promises, and count from the outputs whether it holds."""
