"""Verbs about detectors: check, backfill, compare."""
