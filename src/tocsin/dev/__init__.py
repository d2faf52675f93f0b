"""The embedded stack: Kafka, a mail sink and the jobs, on loopback, from one command."""
