"""Let a flow whose plan reads its sources in another order go on where it was: Spark ties a checkpoint to that order.

A flow keeps no state, so a new checkpoint that begins at the offsets of the old one is as good.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, Field

from tocsin.platform import state_file
from tocsin.platform.kafka.topic_set import Place, Position, partition_of
from tocsin.platform.storage.stored_path import StoredPath, remove_tree
from tocsin.spark.query.checkpoint import read_committed

_FILE = "order.json"


class Order(BaseModel, frozen=True):
    """The order of the topics in a checkpoint, which begins at `offsets`; none at the first event.

    `is_pending`: the checkpoint that is there is the one before.
    """

    topics: list[str] = Field(default_factory=list)
    offsets: Position = Field(default_factory=dict)
    is_pending: bool = False


def begin_at(query: StoredPath, offsets: Position) -> None:
    """Let the next `fit_order` replace the checkpoint in `query` by one that begins at `offsets`, else at the start.

    OSError if the state folder cannot be written.
    """
    note = query.parent / _FILE
    order = state_file.read(note, Order, Order())
    state_file.write(note, Order, order.model_copy(update={"offsets": offsets, "is_pending": True}))


def fit_order(query: StoredPath, topics: list[str] | None, places: Sequence[Place]) -> Position:
    """Make Spark's checkpoint in `query` one for a plan that reads `topics` in this order; None for that which it has.

    Returns the offset at which the query begins in each of `places`, -2 for the first event; nothing where it goes on
    with the checkpoint, or begins at the first event everywhere. OSError if the state folder cannot be written.
    """
    committed, note = read_committed(query) or {}, query.parent / _FILE
    known = state_file.read(
        note, Order, Order(topics=list(dict.fromkeys(partition_of(place)[0] for place in committed)))
    )
    if topics is not None and known.topics != topics:
        if committed and not known.is_pending:
            known = Order(offsets=committed, is_pending=True)
        known = known.model_copy(update={"topics": topics})
        state_file.write(note, Order, known)
    if known.is_pending:
        remove_tree(query)
        committed, known = {}, known.model_copy(update={"is_pending": False})
        state_file.write(note, Order, known)
    if committed or not any(place in known.offsets for place in places):
        return {}
    remove_tree(query)  # of a first batch that was broken off, over which Spark does not begin
    return {place: known.offsets.get(place, -2) for place in places}
