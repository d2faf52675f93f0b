"""Verbs of operators: the stack, its jobs, their alerts."""
