"""Read what people declare: settings, sources, detectors, flows, views, tables. `model` holds the contracts, pure."""
