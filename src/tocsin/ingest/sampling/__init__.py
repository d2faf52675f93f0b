"""Samples of lines: what can be guessed of the source that sends them."""
