"""Run detectors over whole days of history with Spark."""
