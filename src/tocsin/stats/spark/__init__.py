"""Statistics as columns for `detect`. A missing value gives null, and a row without a score is dropped and counted."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from tocsin.stats.functions import MAD_TO_DEVIATION


def hour_of_week(time: Column | str, zone: str = "UTC") -> Column:
    """Number the hour in its week: 0 on Monday from 00:00, 167 on Sunday from 23:00, in the time zone `zone`."""
    local = F.from_utc_timestamp(time, zone)
    return F.weekday(local) * 24 + F.hour(local)


def robust_z(value: Column | str, median: Column | str, mad: Column | str, *, least: float) -> Column:
    """Score as `tocsin.stats.robust_z`, with null where one of the three is null, NaN or infinite.

    Median and MAD come from a table over history, or from an aggregate. ValueError unless `least` is above zero.
    """
    if not least > 0:
        raise ValueError(f"least must be above zero, not {least}: it is the smallest spread that counts")
    spread = F.greatest(MAD_TO_DEVIATION * _finite(mad), F.lit(float(least)))
    return F.when(_finite(mad).isNotNull(), (_finite(value) - _finite(median)) / spread)


def entropy(values: Column | str) -> Column:
    """Compute the entropy of an array in bits, as `tocsin.stats.entropy`; null for a null array.

    `F.split("name", "")` makes an array of the characters of a text, `F.collect_list` of the values of a window. The
    time grows with the number of values times that of different ones.
    """
    known = F.filter(values, lambda value: value.isNotNull())
    counts = F.transform(F.array_distinct(known), lambda it: F.size(F.filter(known, lambda value: value == it)))
    shares = F.transform(counts, lambda count: count / F.size(known))
    return F.aggregate(shares, F.lit(0.0), lambda bits, share: bits - share * F.log2(share))


def _finite(value: Column | str) -> Column:
    number = (F.col(value) if isinstance(value, str) else value).cast("double")
    return F.when(F.abs(number) < float("inf"), F.greatest(F.lit(-1e150), F.least(number, F.lit(1e150))))
