"""How good a detector is, at which limits: its scores on history beside known incidents and verdicts."""
