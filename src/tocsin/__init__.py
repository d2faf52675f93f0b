"""Tocsin: run anomaly detectors, one Python file each, on streams and on history.

A detector needs two names from here, a flow or a view one::

    from tocsin import Levels, detector
    from tocsin import flow
    from tocsin import view

one more to find who sends nothing::

    from tocsin import Entities

one to judge them by a model (docs/write/models.md)::

    from tocsin import Model

and two more to say what `events` of several sources are, and `tables`, where a function takes them::

    from tocsin import Sources, Tables

a detector that takes one event after the other (`step`) two more::

    from tocsin import Event, Levels, StepFinding, detector

and those in which its cases are written (docs/write/testing.md)::

    from tocsin import Case, at, email, line, tick, urgent

This module and what it imports use the standard library alone, so that the set-up can run before anything is installed.
"""

from tocsin.cases.case_language import Case, Timeline, at, email, line, tick, urgent
from tocsin.declare.model.detector import Entities, Levels, Model, detector
from tocsin.declare.model.flow import Sources, Tables, flow
from tocsin.declare.model.steps.step_contract import Event, StepFinding
from tocsin.declare.model.view import view

__all__ = [
    "Case", "Entities", "Event", "Levels", "Model", "Sources", "StepFinding", "Tables", "Timeline", "at", "detector",
    "email", "flow", "line", "tick", "urgent", "view",
]  # fmt: skip
