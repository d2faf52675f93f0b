"""Users with many failed logins in a minute (password guessing).

Catches: one account tried many times. Misses: slow guessing.
When it fires, look first at: whether one of the attempts succeeded.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import Case, Levels, at, detector, email


@detector(source="logins", entity="user_id", window="1 minute", levels=Levels(email=10), owner="security@example.com",
          runbook="docs/runbooks/takeover.md", stage="live")  # fmt: skip
def detect(events: DataFrame) -> DataFrame:
    return events.where("action = 'login failed'").groupBy("window", "user_id").agg(F.count("*").alias("score"))


FAILED = at("12:00:00", user_id="ann", action="login failed")
CASES = [
    Case("eleven failures", events=FAILED.repeat(11, every="1 second"), expect=[email(user_id="ann", score=11)]),
    Case("other actions", events=at("12:00:00", user_id="ann", action="login succeeded").repeat(11), expect=[]),
]
