"""Files of networks: what is known of the addresses in them."""
