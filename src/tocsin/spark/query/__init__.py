"""Keep one long-running streaming query alive, from its checkpoint to its end."""
