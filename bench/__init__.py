"""Measurements of Tocsin, each in one run beside its peers on one broker: `make bench`, or `python -m bench --help`."""
