"""Tables that change, joined to events by the time in which a row holds."""
