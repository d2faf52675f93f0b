"""REST: read views over HTTP, with how fresh they are, and follow what changes in them."""
