"""Backfills: detectors over days of history, what was published for each, and which need a run. Knows no Spark."""
