"""Cases that nobody writes: at the limits of a detector, and at random."""
