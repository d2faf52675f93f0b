"""Backups of an installation, and restoring them."""
