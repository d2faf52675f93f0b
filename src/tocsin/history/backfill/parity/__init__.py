"""Parity: whether the stream and a backfill have found the same, and why not. Knows neither Spark nor the alerts DB.

`comparison` says what differs, `reasons` says why, `evidence` reads what reasons follow from, `report` keeps what came
of it. `tocsin.history.backfill.spark.recompute` proves a reason by recomputing windows; `tocsin parity` brings it
together.
"""
