"""Tocsin: run anomaly detectors, one Python file each, on streams and on history.

A detector needs two names from here, a flow or a view one::

    from tocsin import Levels, detector
    from tocsin import flow
    from tocsin import view

and one more to say what `tables` are, where a function joins some::

    from tocsin import Tables

This module and what it imports use the standard library alone, so that the set-up can run before anything is installed.
"""

from tocsin.model.detector import Levels, Tables, detector
from tocsin.model.flow import flow
from tocsin.model.view import view

__all__ = ["Levels", "Tables", "detector", "flow", "view"]
