"""Show the whole way from a log line to a mail."""
