"""A Spark plan as a plain tree, read from the JSON that Catalyst writes of it in one call; nothing here needs a JVM.

Catalyst writes trees as lists in pre-order, each node with the number of its children, and fields that hold further
trees.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

STRUCT = "tocsin_record"
"""So the name of a record begins from which the columns of events are read."""

# What differs between two readings of one plan, or does not touch its meaning: identities, addresses, delays.
_NOISE = {
    "jvmId", "resultId", "nodeId", "qualifier", "metadata", "nonInheritableMetadataKeys", "evalId", "source", "table",
    "extraOptions", "v1Relation", "sourceIdentifyingName", "delay", "child", "children", "left", "right", "rdd",
    "session", "num-children", "class", "timeZoneId", "hint", "hints", "evalMode", "catalogTable", "identifier",
}  # fmt: skip


@dataclass(frozen=True)
class Node:
    """One operator of a plan, or one expression.

    `kind` is Catalyst's class name without its package, such as "Aggregate". Trees among `fields` are lists of `Node`.
    """

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)
    children: tuple[Node, ...] = ()

    def walk(self) -> Iterator[Node]:
        """Yield the node and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def expressions(self, *names: str) -> list[Node]:
        """List the expression trees in the fields `names` (all fields when none is named), in order."""
        found: list[Node] = []
        for name in names or self.fields:
            _collect(self.fields.get(name), found)
        return found

    @property
    def name(self) -> str:
        """The name of an alias, attribute or function; "" for others."""
        name = self.fields.get("name")
        return name if isinstance(name, str) else ""

    @property
    def identity(self) -> int | None:
        """Catalyst's number of the column that an alias makes or an attribute refers to; None for others."""
        number = self.fields.get("exprId")
        return number["id"] if isinstance(number, dict) else None


def parse_tree(text: str) -> Node:
    """Read the plan in the JSON that Catalyst's `toJSON` gives."""
    node = _read(json.loads(text))
    if not isinstance(node, Node):
        raise TypeError("this is not the JSON of a plan")
    return node


def replace_columns(node: Node, made: dict[int, Node], depth: int = 0) -> Node:
    """Replace each column of the expression `node` that is in `made` by its expression."""
    if depth > 50:
        return node
    if node.kind == "AttributeReference" and node.identity in made:
        return replace_columns(made[node.identity], made, depth + 1)
    return Node(node.kind, node.fields, tuple(replace_columns(child, made, depth + 1) for child in node.children))


def normalise(node: Node) -> str:
    """Write `node` as text that is the same in every process: columns are numbered as they appear."""
    numbers: dict[int, int] = {}
    return json.dumps(_plain(node, numbers), sort_keys=True, separators=(",", ":"))


def _read(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _read(inner) for key, inner in value.items()}
    if not isinstance(value, list):
        return value
    if value and isinstance(value[0], dict) and "num-children" in value[0]:
        nodes = iter(value)
        return _node(nodes)
    return [_read(inner) for inner in value]


def _node(nodes: Iterator[dict[str, Any]]) -> Node:
    fields = next(nodes)
    children = tuple(_node(nodes) for _ in range(fields["num-children"]))
    kind = fields["class"].rsplit(".", 1)[-1]
    return Node(kind, {key: _read(value) for key, value in fields.items() if key != "class"}, children)


def _collect(value: Any, found: list[Node]) -> None:
    if isinstance(value, Node):
        found.append(value)
    elif isinstance(value, list):
        for inner in value:
            _collect(inner, found)
    elif isinstance(value, dict):
        for inner in value.values():
            _collect(inner, found)


def _plain(value: Any, numbers: dict[int, int]) -> Any:
    if isinstance(value, Node):
        fields = {k: _plain(v, numbers) for k, v in sorted(value.fields.items()) if k not in _NOISE}
        return [value.kind, fields, [_plain(child, numbers) for child in value.children]]
    if isinstance(value, list):
        return [_plain(inner, numbers) for inner in value]
    if not isinstance(value, dict):
        return value
    if str(value.get("product-class", "")).endswith("ExprId"):
        return numbers.setdefault(value["id"], len(numbers))
    return {key: _plain(inner, numbers) for key, inner in sorted(value.items()) if key not in _NOISE}
