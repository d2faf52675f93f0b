"""Let no writer whose lease has passed to another change the alerts DB, however late it wakes up.

Each transaction that writes carries the term of its lease. The DB keeps the highest one, and refuses lower ones.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, insert, select, update

from tocsin.alerts.store.schema import writer_terms
from tocsin.project.settings import Settings
from tocsin.runtime.leases.lead import held_lease
from tocsin.runtime.leases.lease_keeper import LeaseLost

Fence = Callable[[Connection], None]


def fence_of(settings: Settings, job: str) -> Fence | None:
    """Return what each transaction of `job` begins with; None if this process leads it without a lease.

    It raises LeaseLost when the lease has ended by this machine's clock, or when a later holder has written.
    """
    lease = held_lease(settings, job)
    if lease is None or lease.term is None:
        return None
    held, term = lease, lease.term

    def fence(connection: Connection) -> None:
        held.check()
        mine = update(writer_terms).where(writer_terms.c.job == job, writer_terms.c.term <= term).values(term=term)
        if connection.execute(mine).rowcount:
            return
        later = connection.execute(select(writer_terms.c.term).where(writer_terms.c.job == job)).scalar()
        if later is not None:
            raise LeaseLost(f"{job} has written to the alerts DB in term {later}, this process leads in term {term}")
        connection.execute(insert(writer_terms).values(job=job, term=term))

    return fence
