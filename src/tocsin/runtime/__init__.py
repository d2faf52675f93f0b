"""Serve every process of Tocsin: locks, heartbeats, logs, state files, and how it ends."""
