"""Run cases: in batches, in streams, in real-time mode."""
