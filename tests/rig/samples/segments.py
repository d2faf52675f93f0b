"""A table of customers' segments."""

from typing import Any

from tocsin.declare.model.table import TableSpec


def segments(**fields: Any) -> TableSpec:
    known: dict[str, Any] = {
        "name": "segments",
        "title": "Segments",
        "owner": "crm@example.com",
        "topic": "segments",
        "key": ("customer_id",),
        "columns": {"customer_id": "string", "segment": "string", "usual": "double"},
        "optional": frozenset({"usual"}),
    }
    return TableSpec.model_validate(known | fields)
