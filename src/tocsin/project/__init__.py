"""Read what a project declares: settings, sources, detectors."""
