"""Define what everything is about, pure: detectors, sources, findings, reports of jobs, verdicts, names, errors."""
