"""The embedded stack: Kafka, a mail sink and jobs on loopback, from one command."""
