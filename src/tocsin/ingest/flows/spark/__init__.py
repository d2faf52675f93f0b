"""A flow's Spark query: events in, events out."""
