"""Backfills: detectors over days of history. What was published for which day, and which days need it. Knows no Spark.

`ledger` keeps what was published, `planning` says what is to be done; `tocsin.backfill.spark.backfill_run` does it.
"""
