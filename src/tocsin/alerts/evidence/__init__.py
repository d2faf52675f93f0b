"""What is behind findings and alerts, for people: why one was made, and the events that led to it."""
