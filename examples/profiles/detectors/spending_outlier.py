"""Purchases far above what their customer usually spends (a stolen card, a wrong price).

Catches: one purchase that lies far outside of the last 60 days of its customer, by the modified z-score.
Misses: customers with fewer than ten purchases, and many small purchases instead of a large one.
When it fires, look first at: whether the customer bought such a thing before, and where the goods were sent.

The score is that of Iglewicz and Hoaglin (How to Detect and Handle Outliers, 1993): 0.6745 times the distance from the
median, in MADs. They call 3.5 an outlier; of thousands of purchases a day that many are ordinary.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import Case, Levels, Tables, at, detector, email, urgent


@detector(
    source="purchases",
    tables=["usual"],
    entity="customer_id",
    window=None,
    levels=Levels(email=10, urgent=40),
    owner="fraud@example.com",
    runbook="docs/runbooks/spending_outlier.md",
    stage="live",
)
def detect(events: DataFrame, tables: Tables) -> DataFrame:
    known: DataFrame = tables.join(events, "usual", how="inner")
    spread = F.greatest("mad", 0.05 * F.col("median"))  # who always pays the same has a MAD of zero
    return known.withColumn("score", 0.6745 * (F.col("amount") - F.col("median")) / spread)


USUAL = at("00:00:00", customer_id="ann", median=20.0, mad=6.745)
CASES = [
    Case(
        "10.5 is more than usual",
        events=at("12:00:00", customer_id="ann", amount=125.0),
        expect=[email(customer_id="ann", window="12:00:00")],
        tables={"usual": USUAL},
    ),
    Case("9.5 is not", events=at("12:00:00", customer_id="ann", amount=115.0), expect=[], tables={"usual": USUAL}),
    Case(
        "39.5 can wait",
        events=at("12:00:00", customer_id="ann", amount=415.0),
        expect=[email(customer_id="ann")],
        tables={"usual": USUAL},
    ),
    Case(
        "40.5 cannot",
        events=at("12:00:00", customer_id="ann", amount=425.0),
        expect=[urgent(customer_id="ann")],
        tables={"usual": USUAL},
    ),
    Case(
        "a refund, and a customer who is new",
        events=at("12:00:00", customer_id="ann", amount=-500.0).then(customer_id="bob", amount=900.0, after="1 second"),
        expect=[],
        tables={"usual": USUAL},
    ),
    Case(
        "a monthly fee that doubles",
        events=at("12:00:00", customer_id="eve", amount=20.0),
        expect=[email(customer_id="eve")],
        tables={"usual": at("00:00:00", customer_id="eve", median=10.0, mad=0.0)},
    ),
]
