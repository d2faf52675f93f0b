"""Verbs about detectors: check, backfill, compare, roll back."""
