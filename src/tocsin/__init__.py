"""Tocsin: run anomaly detectors, one Python file each, on streams and on history.

A detector needs two names from here::

    from tocsin import Levels, detector

This module and what it imports use the standard library alone, so that the set-up can run before anything is installed.
"""

from tocsin.model.detector import Levels, detector

__all__ = ["Levels", "detector"]
