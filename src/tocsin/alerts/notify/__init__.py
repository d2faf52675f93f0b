"""Bring notifications to people."""
