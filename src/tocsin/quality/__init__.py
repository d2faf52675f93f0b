"""Judge the quality of data: suites of expectations, the profile of a day, verdict and report."""
