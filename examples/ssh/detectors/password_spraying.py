"""One address that fails to log in to many accounts within five minutes (password spraying).

Catches: few passwords tried on many accounts of any hosts, which no limit on one account notices.
Misses: an address for each try, and fewer than two accounts a minute.
When it fires, look first at: whether the address then logged in to one of the accounts.

The technique is T1110.003 of MITRE ATT&CK. The number of accounts is an estimate, by 2 % off.
"""

from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import Case, Levels, at, detector, email, urgent


@detector(source="sshd", entity="address", window="5 minutes", slide="1 minute", levels=Levels(email=10, urgent=50),
          owner="security@example.com", runbook="docs/runbooks/password_spraying.md", stage="live")  # fmt: skip
def detect(events: DataFrame) -> DataFrame:
    failures = events.where("result IS NULL OR result = 'Failed'")  # without a result the name is not known
    return failures.groupBy("window", "address").agg(
        F.approx_count_distinct(F.coalesce("user", F.lit("(blank)")), 0.02).alias("score"),
        F.sum(F.coalesce("repeated", F.lit(1))).alias("failures"),
    )


FIRST = at("12:00:00", address="203.0.113.9", user="user-0", result="Failed")
TEN = reduce(lambda tries, number: tries.then(after="1 second", user=f"user-{number}"), range(1, 10), FIRST)
FIFTY = reduce(lambda tries, number: tries.then(after="500 ms", user=f"user-{number}"), range(10, 50), TEN)
WINDOWS = ("11:56:00", "11:57:00", "11:58:00", "11:59:00", "12:00:00")
CASES = [
    Case("ten accounts", events=TEN.repeat(3, every="20 seconds"), expect=[]),
    Case(
        "eleven accounts, the last of a blank name that is not known",
        events=TEN.then(after="1 second", user=None, result=None),
        expect=[email(address="203.0.113.9", window=start, score=11) for start in WINDOWS],
    ),
    Case(
        "fifty accounts",
        events=FIFTY,
        expect=[email(address="203.0.113.9", window=start, score=50) for start in WINDOWS],
    ),
    Case(
        "51 accounts",
        events=FIFTY.then(after="1 second", user="user-50"),
        expect=[urgent(address="203.0.113.9", window=start, score=51) for start in WINDOWS],
    ),
    Case("logins that succeed", events=TEN.then(after="1 second", user="oracle", result="Accepted"), expect=[]),
    Case("many failures of one account", events=FIRST.repeat(60, every="1 second"), expect=[]),
    Case(
        "ten accounts, and ten others six minutes later",
        events=TEN.then(after="6 minutes", user="oracle").then(after="1 second", user="admin"),
        expect=[],
    ),
]
