"""Land records of Kafka, and of files, as Parquet."""
