"""Compute a view anew."""
