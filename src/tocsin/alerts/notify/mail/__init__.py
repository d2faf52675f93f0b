"""Build the mail of a notification: `compose` the message, `chart` the picture, `plain_text` makes logs harmless."""
