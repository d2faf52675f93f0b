"""The floor of the applier: what a plain loop takes to put the rows of a view into Redis or SQLite.

A batch is written, then its offsets are committed: at least once, and nothing knows which rows are there twice.

Arguments: bootstrap-servers topic consumer-group redis|sqlite address-or-file table. Runs until SIGTERM.
"""

import json
import signal
import sqlite3
import sys
from collections.abc import Callable
from typing import Any

import redis
from confluent_kafka import Consumer

Rows = list[dict[str, Any]]


def redis_writer(address: str, table: str) -> Callable[[Rows], None]:
    """Write the rows of a batch in one pipeline."""
    client = redis.Redis.from_url(address)

    def write(rows: Rows) -> None:
        pipeline = client.pipeline(transaction=False)
        for row in rows:
            pipeline.hset(f"{table}:{row['key']['user_id']}", mapping=row["values"])
        pipeline.execute()

    return write


def sqlite_writer(path: str, table: str) -> Callable[[Rows], None]:
    """Write the rows of a batch in one transaction."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"CREATE TABLE IF NOT EXISTS {table} (name TEXT PRIMARY KEY, count INTEGER, latest INTEGER)")

    def write(rows: Rows) -> None:
        values = [(row["key"]["user_id"], row["values"]["count"], row["values"]["latest"]) for row in rows]
        connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?)", values)
        connection.commit()

    return write


def main() -> None:
    """Apply until told to stop."""
    servers, topic, group, kind, place, table = sys.argv[1:]
    own = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": servers, **own})
    consumer.subscribe([topic])
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    write = (redis_writer if kind == "redis" else sqlite_writer)(place, table)
    while True:
        messages = [message for message in consumer.consume(1000, 0.1) if not message.error()]
        if messages:
            write([json.loads(message.value() or b"{}") for message in messages])
            consumer.commit(asynchronous=True)


if __name__ == "__main__":
    main()
