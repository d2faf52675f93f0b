"""What is behind findings, for people: why one was made, and what a detector has shown in shadow."""
