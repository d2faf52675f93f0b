"""Land what is new in a topic, as a seal does before it seals."""

from tocsin.declare.model.names import landing_job
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.history.landing_ledger import Entry
from tocsin.history.spark.landing import land_new
from tocsin.spark.batch_session import running_batch


def land(settings: Settings, source: Source) -> Entry:
    with running_batch(settings, landing_job(source.name)) as spark:
        return land_new(settings, source, lambda: spark)
