"""Channels to receivers other than mail; each has its record in `tocsin.declare.receivers`."""
