"""A source's Spark query: raw records in, events and quarantined records out."""
