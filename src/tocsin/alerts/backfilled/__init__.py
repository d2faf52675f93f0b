"""Bring the findings of backfilled days into the alerts DB."""
