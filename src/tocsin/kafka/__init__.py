"""Talk to Kafka: topics and their records."""
