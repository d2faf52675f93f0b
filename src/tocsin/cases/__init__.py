"""Cases of detectors: timelines of events, run in every way in which events reach a detector."""
