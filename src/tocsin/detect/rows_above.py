"""Find out if the operators above an aggregate let a rising score be written while it rises.

A row that was written is never taken back, so a filter above the aggregate may turn true while its window is open, but
not false again; else the row is written when the window has closed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tocsin.declare.model.detector import ScoreKind
from tocsin.detect.scores import Score, definitions, expand, kind_of, replace_columns, score_of
from tocsin.spark.plan_tree import Node

_KEEP_ROWS = {"Project", "SubqueryAlias", "View", "ResolvedHint", "Repartition", "RepartitionByExpression"}
_JUDGED = {"Filter", "Join"}
_KEEP_MATCHES = {"Inner", "Cross", "LeftSemi"}
_UNSTEADY = ("Python", "ScalaUDF", "Rand", "Uuid", "Shuffle", "Current", "Now", "Reflect")


def correct_score(plan: Node, score: Score, entity: Iterable[str]) -> Score:
    """Correct `score`, derived from the columns of `plan` alone, for the operators above its topmost aggregate."""
    between = _between(plan)
    if score.kind is not ScoreKind.RISING or between is None:
        return score
    made = definitions(plan)
    for column in (*entity, "window"):
        expression = expand(plan, column)
        if expression is not None and _aggregates(expression):
            return _final(f"'{column}' comes from an aggregate and can change while its window is open")
    for node in between:
        if node.kind == "Union":
            return _score_of_union(node, score, tuple(entity))
        if why := _drop_reason(node, made):
            return _final(why)
    # A count that skips values, because its row is written only from some moment on, may miss every rung of the ladder.
    return replace(score, counts=score.counts and all(node.kind in _KEEP_ROWS for node in between))


def _score_of_union(union: Node, score: Score, entity: tuple[str, ...]) -> Score:
    """Find one kind for all parts: rising if each is, final if one is final."""
    parts = [correct_score(part, score_of(part), entity) for part in union.children]
    for part in parts:
        if part.kind is not ScoreKind.RISING:
            return part
    return replace(score, counts=False)


def _between(plan: Node) -> list[Node] | None:
    """List the operators above the topmost aggregate, from the top; None if the plan has none."""
    if plan.kind == "Aggregate":
        return []
    for child in plan.children:
        below = _between(child)
        if below is not None:
            return [plan, *below]
    return None


def _drop_reason(node: Node, made: dict[int, Node]) -> str:
    """Say why the operator `node` may take away a row that it once gave; "" when it never does."""
    if node.kind not in _KEEP_ROWS | _JUDGED:
        return f"nothing is known about {node.kind} above an aggregate"
    for condition in (replace_columns(top, made) for top in node.expressions("condition")):
        if not _stays(condition):
            return "a filter above the aggregate can turn false again while its window is open"
        if node.kind == "Join" and _aggregates(condition) and _join_type(node) not in _KEEP_MATCHES:
            return "a join above the aggregate can drop or change a row once it begins to match"
    return ""


def _join_type(join: Node) -> str:
    """Read Spark's name of it, such as "LeftAnti"."""
    return str(join.fields["joinType"]["object"]).rsplit(".", 1)[-1].removesuffix("$")


def _stays(condition: Node) -> bool:
    """Return whether `condition`, once true for a group, stays true when more events come in."""
    if not _aggregates(condition):
        return not any(node.kind.startswith(_UNSTEADY) for node in condition.walk())
    if condition.kind in ("And", "Or"):
        return all(_stays(child) for child in condition.children)
    if condition.kind == "IsNotNull":
        return _rises(condition.children[0])
    if condition.kind in ("GreaterThan", "GreaterThanOrEqual"):
        more, less = condition.children
    elif condition.kind in ("LessThan", "LessThanOrEqual"):
        less, more = condition.children
    else:
        return False
    return _rises(more) and not _aggregates(less) and _stays(less)


def _rises(expression: Node) -> bool:
    return _aggregates(expression) and kind_of(expression).kind is ScoreKind.RISING


def _aggregates(expression: Node) -> bool:
    return any(node.kind == "AggregateExpression" for node in expression.walk())


def _final(why: str) -> Score:
    return Score(ScoreKind.FINAL, False, why)
