"""Files of past events and of samples: their rows as records."""
