"""The file of a detector with a model, to be filled in."""

from __future__ import annotations

TEXT = '''"""Doc."""
from tocsin import Entities, Levels, Model, detector
@detector(source="logins", entity="user_id", window={window}, levels=Levels(email=1), owner="o@example.com",
          runbook="r", stage="draft"{more})
def detect(events):
    return events
{functions}
'''
TRAIN, SCORE = "def train(features):\n    return 1\n", "def score(features, model):\n    return 1\n"
