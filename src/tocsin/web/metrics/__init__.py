"""Figures of an installation: for Prometheus, and for `tocsin status`."""
