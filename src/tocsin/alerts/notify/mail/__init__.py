"""How a notification looks: `compose` builds the message, `chart` draws, `plain` makes text from logs harmless."""
