"""Talk to Kafka: topics, their records, and what jobs report."""
