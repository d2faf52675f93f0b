"""Flows: events of one source made into events of another."""
