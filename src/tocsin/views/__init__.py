"""Views: results of queries, kept up to date in sinks and behind REST."""
