"""Whether data is good enough to go on: suites of expectations, the profile of a day, its verdict and its report."""
