"""Seal and read days of history with Spark."""
