"""Tables as Spark joins them."""
