"""Requests to compute a view anew, and the days of one that is being computed from history."""
