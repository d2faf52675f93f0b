"""Records on their way in: topics, producers, quarantine and replay, ticks.

No Spark here: the ingest job itself is `tocsin.ingest.spark.ingestion`.
"""
