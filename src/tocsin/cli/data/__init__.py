"""Verbs about data: send, history, quality, quarantine, topics."""
