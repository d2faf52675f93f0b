"""Serve every process of Tocsin: locks, heartbeats, reports, logs, state files, and how it ends."""
