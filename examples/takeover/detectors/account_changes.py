"""Accounts of which several things are changed within ten minutes (a thief makes an account his own).

Catches: password and address changed in a row. Misses: changes over hours. It notifies nobody, since most who do so are
the owners; taken_over reads its findings. When it fires, look first at: where the login before came from.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import Case, Levels, at, detector, email


@detector(source="logins", entity="user_id", window="10 minutes", levels=Levels(email=1), owner="security@example.com",
          runbook="docs/runbooks/takeover.md", stage="live", notify=False)  # fmt: skip
def detect(events: DataFrame) -> DataFrame:
    changes = events.where("action IN ('password changed', 'address changed')")
    return changes.groupBy("window", "user_id").agg(F.count("*").alias("score"))


CHANGES = at("12:00:00", user_id="ann", action="password changed").then(after="1 minute", action="address changed")
CASES = [
    Case("password and address", events=CHANGES, expect=[email(user_id="ann", score=2)]),
    Case("the password alone", events=at("12:00:00", user_id="ann", action="password changed"), expect=[]),
    Case(
        "one at the end of ten minutes, one in the next ten",
        events=at("12:09:00", user_id="ann", action="password changed").then(
            after="2 minutes", action="address changed"
        ),
        expect=[],
    ),
    Case("logins", events=at("12:00:00", user_id="ann", action="login succeeded").repeat(5), expect=[]),
]
