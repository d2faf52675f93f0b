"""Where views are kept up to date besides their SQLite file: one module for each kind of sink."""
