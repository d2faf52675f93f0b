"""Figures of an installation: for Prometheus, and for whoever asks how the jobs fare."""
