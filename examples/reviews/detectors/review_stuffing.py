"""Many extreme ratings by one reviewer for the products of one vendor within a day (bought praise, slander).

Catches: one account that gives a vendor one or five stars again and again, whatever the products.
Misses: many accounts with a review each, and ratings that are spread over weeks.
When it fires, look first at: whether the products were bought, and whether the texts are copies of each other.

Several very high or very low ratings of one group of products in a short time are a sign of Lim, Nguyen, Jindal, Liu
and Lauw (Detecting Product Review Spammers using Rating Behaviors, CIKM 2010).
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import Case, Levels, at, detector, email, urgent


@detector(source="reviews", entity=["vendor", "reviewer"], window="1 day", slide="12 hours",
          levels=Levels(email=3, urgent=10), owner="trust@example.com", runbook="docs/runbooks/review_stuffing.md",
          stage="live")  # fmt: skip
def detect(events: DataFrame) -> DataFrame:
    extreme = events.where("stars IN (1, 5)")
    return extreme.groupBy("window", "vendor", "reviewer").agg(
        F.count("*").alias("score"), F.count_if(F.expr("stars = 5")).alias("praising"), F.max("text").alias("one_text")
    )


PRAISE = at("20:00:00", vendor="v3", reviewer="r17", stars=5, text="Perfect!")
WINDOWS = ("00:00:00", "12:00:00")
CASES = [
    Case(
        "five stars four times, over midnight",
        events=PRAISE.repeat(4, every="2 hours"),
        expect=[email(vendor="v3", reviewer="r17", window="12:00:00", score=4)],
    ),
    Case(
        "slander",
        events=at("20:00:00", vendor="v3", reviewer="r17", stars=1).repeat(11, every="5 minutes"),
        expect=[urgent(vendor="v3", reviewer="r17", window=start, score=11) for start in WINDOWS],
    ),
    Case(
        "a customer who thinks about it",
        events=PRAISE.then(after="1 minute", stars=4).then(after="1 minute", stars=2).repeat(3, every="5 minutes"),
        expect=[],
    ),
    Case(
        "one product of each of four vendors",
        events=PRAISE.then(after="1 minute", vendor="v4")
        .then(after="1 minute", vendor="v5")
        .then(after="1 minute", vendor="v6"),
        expect=[],
    ),
    Case("one a day", events=PRAISE.repeat(5, every="1 day"), expect=[]),
]
