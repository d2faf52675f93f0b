"""Profile a day with Spark, and judge it."""
