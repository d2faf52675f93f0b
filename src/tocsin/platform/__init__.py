"""Serve every process: locks, heartbeats, logs, state files, how it ends; `kafka` and `storage` hold its state."""
