"""Tell people about jobs that are in trouble, and keep what happened."""
