"""Parity: compare what the stream and a backfill have found. Knows neither Spark nor the alerts DB."""
