"""Many failed logins to one account within five minutes (slow password guessing).

Catches: one account of a host tried from any number of addresses, too slowly for a limit on ten seconds.
Misses: fewer than five tries a minute, and many accounts tried once each (`password_spraying` finds those).
When it fires, look first at: whether one of the addresses then logged in, and how many addresses took part.

The technique is T1110.001 of MITRE ATT&CK. A hundred is the most failures in a row that NIST SP 800-63B (5.2.2) allows
one account. The windows overlap, so that a burst is not cut in two by the edge of one.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import Case, Levels, at, detector, email, urgent


@detector(source="sshd", entity=["host", "user"], window="5 minutes", slide="1 minute",
          levels=Levels(email=20, urgent=100), owner="security@example.com",
          runbook="docs/runbooks/password_guessing.md", stage="live")  # fmt: skip
def detect(events: DataFrame) -> DataFrame:
    failures = events.where("result = 'Failed'").withColumn("user", F.coalesce("user", F.lit("(blank)")))
    tries = F.abs(F.coalesce("repeated", F.lit(1)))  # without abs nothing says that the sum never falls
    return failures.groupBy("window", "host", "user").agg(
        F.sum(tries).alias("score"), F.approx_count_distinct("address").alias("addresses")
    )


FAILURE = at("12:00:30", host="web1", user="root", address="203.0.113.9", result="Failed")
WINDOWS = ("11:56:00", "11:57:00", "11:58:00", "11:59:00", "12:00:00")
CASES = [
    Case(
        "25 failures in half a minute, in each window that holds them",
        events=FAILURE.repeat(25, every="1 second"),
        expect=[email(host="web1", user="root", window=start, score=25) for start in WINDOWS],
    ),
    Case(
        "a blank name, and lines that syslog has left out",
        events=FAILURE.then(after="1 second", user=None).then(after="5 seconds", repeated=20),
        expect=[email(host="web1", user="(blank)", window=start, score=21) for start in WINDOWS],
    ),
    Case(
        "a hundred failures in two lines",
        events=FAILURE.then(after="9 seconds", repeated=99),
        expect=[email(host="web1", user="root", window=start, score=100) for start in WINDOWS],
    ),
    Case(
        "101 failures",
        events=FAILURE.repeat(101, every="10 ms"),
        expect=[urgent(host="web1", user="root", window=start, score=101) for start in WINDOWS],
    ),
    Case(
        "one in twelve seconds, from two addresses in turn, for nearly five minutes",
        events=at("12:00:00", host="web1", user="root", address="203.0.113.9", result="Failed")
        .then(after="12 seconds", address="198.51.100.7")
        .repeat(12, every="24 seconds"),
        expect=[email(host="web1", user="root", window="12:00:00", score=24)],
    ),
    Case("one in sixteen seconds, for a quarter of an hour", events=FAILURE.repeat(60, every="16 seconds"), expect=[]),
    Case(
        "logins that succeed, and names that sshd does not know",
        events=FAILURE.then(after="1 second", result="Accepted")
        .repeat(9, every="2 seconds")
        .then(after="1 second", result=None)
        .repeat(2, every="1 minute"),
        expect=[],
    ),
]
