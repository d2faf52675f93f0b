"""Decide whether data is good enough to go on: suites of expectations, the profile of a day, verdict and report."""
