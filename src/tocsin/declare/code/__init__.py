"""The Python of declared files, looked at without running it."""
