"""A view's Spark query: events in, rows out."""
