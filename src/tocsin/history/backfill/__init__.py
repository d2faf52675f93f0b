"""Backfills: detectors over days of history. What was published for which day, and which days need it. Knows no Spark.

`backfill_ledger` keeps what was published, `backfill_planning` says what is to be done; `spark.backfill_run` does it.
"""
