"""A detector's Spark query: events in, findings out."""
