"""The table of leases in PostgreSQL: one row for each lock that several machines ask for.

`term` grows with each holder, also over a table that was lost and made anew: it begins with the seconds since 1970.
`beats` grows with each change, so whoever has read a row changes it only if nobody else did since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, LiteralString, TypeVar

import psycopg

from tocsin.model.errors import ConfigError, TransientError
from tocsin.runtime.leases.bounded_call import within

_Value = TypeVar("_Value")
_FORM = "leases of Tocsin, form 1"
_CREATION_LOCK = 0x70C5_1B
_SCHEMA = """
CREATE TABLE tocsin_leases (
    name text PRIMARY KEY,
    place text NOT NULL,
    holder text NOT NULL,
    term bigint NOT NULL,
    beats bigint NOT NULL,
    ends_at timestamptz
)"""
_COLUMNS = "name, place, holder, term, beats, extract(epoch FROM ends_at - clock_timestamp())::float8"
_ENDS_AT = "clock_timestamp() + make_interval(secs => %(length)s)"
_INSERT = f"""
INSERT INTO tocsin_leases (name, place, holder, term, beats, ends_at)
VALUES (%(name)s, %(place)s, %(holder)s, extract(epoch FROM clock_timestamp())::bigint, 0, {_ENDS_AT})
ON CONFLICT DO NOTHING RETURNING term"""
_TAKE = f"""
UPDATE tocsin_leases SET place = %(place)s, holder = %(holder)s, beats = beats + 1, ends_at = {_ENDS_AT},
    term = greatest(term + 1, extract(epoch FROM clock_timestamp())::bigint)
WHERE name = %(name)s AND beats = %(beats)s RETURNING term"""
_OWN = "FROM unnest(%(names)s::text[], %(terms)s::bigint[]) AS own (name, term)"
_SAME = "lease.name = own.name AND lease.term = own.term"
_CHANGE = "UPDATE tocsin_leases AS lease SET beats = beats + 1, ends_at ="
_RENEW = f"{_CHANGE} {_ENDS_AT} {_OWN} WHERE {_SAME} RETURNING lease.name"
_RELEASE = f"{_CHANGE} NULL {_OWN} WHERE {_SAME}"
# What only a person can put right; libpq gives no code for a connection that was refused.
_REFUSALS = ("password authentication failed", "no pg_hba.conf entry", "does not exist", "no password supplied")


@dataclass(frozen=True)
class LeaseRow:
    """One lease, as the database knows it.

    Attributes:
        name: of what is led.
        place: the lock file of the holder, told apart from those of all machines.
        holder: its process, for people.
        term: of the holder.
        beats: grows with each change of the row.
        ends_in: seconds, by the database's clock; negative when it has ended, None when it was given back.
    """

    name: str
    place: str
    holder: str
    term: int
    beats: int
    ends_in: float | None


class LeaseTable:
    """The table at one address. Threads may share it.

    Attributes:
        patience: seconds after which a call counts as unanswered.

    Each raises TransientError, the database is away or too slow, a retry helps; ConfigError, the address, the login or
    the table is wrong.
    """

    def __init__(self, address: str, length: float, *, patience: float = 5.0) -> None:
        """Describe the table at `address`, for leases of `length` seconds; nothing is opened yet.

        Raises:
            ConfigError: the address is none.
        """
        try:
            self._shown = _shown(address)
        except psycopg.Error as error:
            raise ConfigError.one("leases.database", f"is no address of a PostgreSQL: {error}") from error
        self._address, self._length, self.patience = address, length, patience
        self._is_prepared = False

    def read(self, name: str) -> LeaseRow | None:
        """Read the lease of `name`; None if there never was one."""
        return self.family(name).get(name)

    def family(self, name: str) -> dict[str, LeaseRow]:
        """Read the leases of `name` and of all below it, such as the checkpoints of a job, by name."""
        rows = self._rows("name = %(it)s OR starts_with(name, %(it)s || '/')", name)
        return {row.name: row for row in rows}

    def held(self, beginning: str) -> list[LeaseRow]:
        """List the leases that have not ended and whose name begins with `beginning`, by name."""
        return self._rows("starts_with(name, %(it)s) AND ends_at > clock_timestamp() ORDER BY name", beginning)

    def take(self, name: str, place: str, holder: str, before: LeaseRow | None) -> int | None:
        """Take the lease that was read as `before`; returns its term, None if somebody was faster."""
        values = {"name": name, "place": place, "holder": holder, "length": self._length}
        values["beats"] = None if before is None else before.beats
        statement = _INSERT if before is None else _TAKE
        row = self._ask(lambda c: c.execute(statement, values).fetchone())
        return None if row is None else int(row[0])

    def renew(self, terms: Mapping[str, int]) -> set[str]:
        """Renew leases, by name; returns those that are still of these terms."""
        values = {"names": [*terms], "terms": [*terms.values()], "length": self._length}
        return {str(row[0]) for row in self._ask(lambda c: c.execute(_RENEW, values).fetchall())}

    def release(self, terms: Mapping[str, int]) -> None:
        """Give leases back, by name, so that the next holder need not wait."""
        self._ask(lambda c: c.execute(_RELEASE, {"names": [*terms], "terms": [*terms.values()]}))

    def _rows(self, which: LiteralString, value: str) -> list[LeaseRow]:
        statement = f"SELECT {_COLUMNS} FROM tocsin_leases WHERE {which}"
        return [LeaseRow(*row) for row in self._ask(lambda c: c.execute(statement, {"it": value}).fetchall())]

    def _ask(self, question: Callable[[psycopg.Connection], _Value]) -> _Value:
        # A connection for each call: a hundred jobs that ask every ten seconds would keep a hundred open, and one that
        # leads to a server which failed over looks well for long.
        try:
            return within(self.patience, lambda: self._answered(question))
        except (psycopg.Error, TransientError) as error:
            raise self._translated(error) from error

    def _answered(self, question: Callable[[psycopg.Connection], _Value]) -> _Value:
        how: dict[str, Any] = {"connect_timeout": max(2, round(self.patience)), "autocommit": True}
        options = f"-c statement_timeout={int(self.patience * 1000)}"
        with psycopg.connect(self._address, options=options, **how) as connection:
            if not self._is_prepared:
                _prepare(connection, self._shown)
                self._is_prepared = True
            return question(connection)

    def _translated(self, error: Exception) -> Exception:
        text = " ".join(str(error).split())
        if isinstance(error, psycopg.ProgrammingError) or any(sign in text for sign in _REFUSALS):
            return ConfigError.one(self._shown, f"cannot be used for leases: {text}", key="leases.database")
        return TransientError(f"the lease database {self._shown}: {text}")


def _prepare(connection: psycopg.Connection, shown: str) -> None:
    """Make the table if it is not there.

    Raises:
        ConfigError: there is one of another form.
    """
    find = "SELECT to_regclass('tocsin_leases')::oid, obj_description(to_regclass('tocsin_leases')::oid, 'pg_class')"
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [_CREATION_LOCK])
        table, form = connection.execute(find).fetchone() or (None, None)
        if table is None:
            connection.execute(_SCHEMA)
            connection.execute(f"COMMENT ON TABLE tocsin_leases IS '{_FORM}'")
        elif form != _FORM:
            what = f"its table tocsin_leases is described as '{form or ''}', this Tocsin knows '{_FORM}'"
            advice = "name another database, or run one version of Tocsin on all machines"
            raise ConfigError.one(shown, f"{what}; {advice}", key="leases.database")


def _shown(address: str) -> str:
    """Write the address without its password."""
    parts = psycopg.conninfo.conninfo_to_dict(address)
    return f"postgresql://{parts.get('host', '')}:{parts.get('port') or 5432}/{parts.get('dbname', '')}"
