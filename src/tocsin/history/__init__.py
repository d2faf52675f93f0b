"""History: what Kafka forgets is landed, sealed by day, published and kept. Spark's part is in `tocsin.sparkjob`."""
