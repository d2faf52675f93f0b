"""The contract of `step`, the second form of a detector: its events, its findings, its state. Standard library only."""
