"""Spark jobs: the one room that imports pyspark.

`session` makes a tuned session, `job` keeps one long-running query alive, `events` reads events, `plan` reads the plan
of a detector, `detect` is the job of one detector.
"""
