"""History: what Kafka forgets is sealed by day, published and kept; `backfill` runs detectors over it."""
