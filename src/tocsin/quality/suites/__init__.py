"""Read the suites of expectations, and check them before any data is there."""
