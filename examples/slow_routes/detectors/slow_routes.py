"""Routes that most of their callers would call slow (a query without its index, a full pool of connections).

Catches: a path of which one request in twenty takes longer than two seconds, within a minute.
Misses: paths with fewer than twenty requests in that minute, and requests that never ended (H12): they have a code.
When it fires, look first at: the average beside it; if that is as high, all requests are slow, else some are stuck.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import Case, Levels, at, detector, email, urgent


@detector(
    source="router",
    entity="path",
    window="1 minute",
    levels=Levels(email=2000, urgent=10000),
    owner="platform@example.com",
    runbook="docs/runbooks/slow_routes.md",
    stage="live",
)
def detect(events: DataFrame) -> DataFrame:
    routes = events.groupBy("window", "path").agg(
        F.percentile_approx("service", 0.95).alias("score"),
        F.avg("service").alias("average"),
        F.count("service").alias("requests"),
    )
    return routes.where("requests >= 20")


FAST = at("12:00:00", path="/cart", service=100.0)
SLOW = at("12:00:10", path="/cart", service=9000.0)
CASES = [
    Case(
        "one in ten takes three seconds",
        events=FAST.repeat(18, every="100 ms").then(after="1 second", service=3000.0).then(after="1 second"),
        expect=[email(path="/cart", window="12:00:00", score=3000)],
    ),
    Case("one of thirty", events=FAST.repeat(29, every="100 ms").then(SLOW), expect=[]),
    Case("too few to tell", events=SLOW.repeat(19, every="100 ms"), expect=[]),
    Case("too few in each minute", events=SLOW.repeat(2, every="1 minute").repeat(15, every="100 ms"), expect=[]),
    Case(
        "just above two seconds",
        events=at("12:00:00", path="/cart", service=2000.5).repeat(20),
        expect=[email(path="/cart", score=2000.5)],
    ),
    Case("just below", events=at("12:00:00", path="/cart", service=1999.5).repeat(20), expect=[]),
    Case(
        "ten seconds",
        events=at("12:00:00", path="/cart", service=9999.5).repeat(20),
        expect=[email(path="/cart", score=9999.5)],
    ),
    Case(
        "more than ten",
        events=at("12:00:00", path="/cart", service=10000.5).repeat(20),
        expect=[urgent(path="/cart", score=10000.5)],
    ),
]
