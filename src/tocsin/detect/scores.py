"""Derive the kind of a score from the expression behind it: rising, final, or unknown; a count or not."""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.declare.model.detector import ScoreKind
from tocsin.spark.plan_tree import Node, replace_columns

# Aggregates that never fall while events come in.
_RISING = {"CountIf", "Max", "HyperLogLogPlusPlus", "CollectSet", "CollectList", "BitOrAgg", "BoolOr", "RegrCount"}
_COUNTS = {"Count", "CountIf"}
# Functions that keep the order of one rising argument.
_KEEPS_ORDER = {
    "Alias", "AggregateExpression", "Cast", "Size", "Round", "BRound", "Floor", "Ceil", "Sqrt", "Log", "Log1p", "Log2",
    "Log10", "Exp", "Greatest", "Coalesce", "Add", "KnownNotNull", "KnownNullable", "ArrayDistinct", "PromotePrecision",
    "CheckOverflow", "GetStructField", "SortArray",
}  # fmt: skip
_KEEPS_COUNTING = {"Alias", "AggregateExpression", "Cast"}
_FINAL = {
    "Average", "Min", "MinBy", "MaxBy", "First", "Last", "AnyValue", "Median", "Percentile", "ApproximatePercentile",
    "PercentileCont", "PercentileDisc", "StddevSamp", "StddevPop", "VarianceSamp", "VariancePop", "Skewness",
    "Kurtosis", "Corr", "CovSample", "CovPopulation", "Mode", "BitAndAgg", "BitXorAgg", "BoolAnd", "TryAverage",
}  # fmt: skip
# Functions under which a rising argument can fall, or turn around.
_TURNS = {
    "Divide", "Subtract", "UnaryMinus", "Multiply", "If", "CaseWhen", "Least", "Abs", "IntegralDivide", "Remainder",
    "Pow",
}  # fmt: skip
_NEVER_NEGATIVE = {"Length", "OctetLength", "BitLength", "Abs", "Size", "CollectSet", "Levenshtein", "ArraySize"}
_POSITIVE_IF_PARTS_ARE = {"Cast", "Add", "Multiply", "Coalesce", "Greatest", "Least", "Sqrt", "Round", "Floor", "Ceil"}


@dataclass(frozen=True)
class Score:
    """The nature of a score; `kind` is None when it cannot be told.

    A score that `counts` grows by at most one with each event, so that leaving values out loses nothing but size.
    """

    kind: ScoreKind | None
    counts: bool
    why: str


def score_of(plan: Node) -> Score:
    """Find out what the column `score` of `plan` (analysed) is."""
    expression = expand(plan, "score")
    if expression is None:
        return Score(None, False, "the plan does not say how 'score' is made")
    if not any(node.kind == "AggregateExpression" for node in expression.walk()):
        if any(node.kind == "Aggregate" for node in plan.walk()):
            return Score(None, False, "'score' does not come from an aggregate")
        return Score(ScoreKind.RISING, False, "the score belongs to a single event")
    if any("Python" in node.kind or "ScalaUDF" in node.kind for node in expression.walk()):
        return Score(None, False, "the score is made by code that the plan does not show")
    return kind_of(expression)


def never_fires(plan: Node, limit: float) -> bool:
    """Return whether the column `score` of `plan` is a number less the count of the events, and so never above `limit`.

    The count is at least one wherever there is a row.
    """
    expression = expand(plan, "score")
    while expression is not None and expression.kind in _KEEPS_COUNTING and expression.children:
        expression = expression.children[0]
    if expression is None or expression.kind != "Subtract":
        return False
    most, count = expression.children
    of_all = [inner for inner in count.walk() if inner.kind == "Count" and inner.children[0].kind == "Literal"]
    is_count = {inner.kind for inner in count.walk()} <= {"Count", "Literal", *_KEEPS_COUNTING}
    number = next((inner.fields.get("value") for inner in most.walk() if inner.kind == "Literal"), None)
    is_number = {inner.kind for inner in most.walk()} <= {"Literal", "Cast"}
    return bool(of_all) and is_count and is_number and number is not None and float(number) - 1 <= limit


def expand(plan: Node, column: str) -> Node | None:
    """Find the expression behind `column`, with columns of lower operators replaced by their expressions."""
    for node in plan.walk():
        outputs = node.expressions("projectList", "aggregateExpressions")
        for output in outputs:
            if output.name == column:
                return replace_columns(output, definitions(plan))
        if outputs:
            return None
    return None


def definitions(plan: Node) -> dict[int, Node]:
    """Collect what the operators of `plan` give a name: the expression by the number of the column that it makes."""
    made: dict[int, Node] = {}
    for node in plan.walk():
        for alias in node.expressions("projectList", "aggregateExpressions"):
            if alias.kind == "Alias" and alias.identity is not None:
                made.setdefault(alias.identity, alias)
    return made


def kind_of(node: Node) -> Score:
    """Find the kind of an expression above aggregates."""
    aggregates = [inner for inner in node.walk() if inner.kind == "AggregateExpression"]
    parts = [_aggregate(aggregate) for aggregate in aggregates]
    for part in parts:
        if part.kind is None:
            return part
    above = {"a cast to text" if _makes_text(inner) else inner.kind for inner in _above(node)}
    if any(part.kind is ScoreKind.FINAL for part in parts):
        return next(part for part in parts if part.kind is ScoreKind.FINAL)
    turning = sorted(above & _TURNS)
    if turning:
        return Score(ScoreKind.FINAL, False, f"the score can fall while its window is open ({', '.join(turning)})")
    unknown = sorted(above - _KEEPS_ORDER - {"Literal"})
    if unknown:
        return Score(None, False, f"nothing is known about {', '.join(unknown)} of an aggregate")
    counts = len(parts) == 1 and parts[0].counts and above <= _KEEPS_COUNTING
    return Score(ScoreKind.RISING, counts, parts[0].why)


def _above(node: Node) -> list[Node]:
    if node.kind == "AggregateExpression":
        return [node]
    return [node, *(inner for child in node.children for inner in _above(child))]


def _makes_text(node: Node) -> bool:
    """Return whether a cast loses the order of numbers: as text, 10 comes before 9."""
    return node.kind == "Cast" and node.fields.get("dataType") == "string"


def _aggregate(node: Node) -> Score:
    function = node.children[0]
    if function.kind == "Sum":
        return _sum(function.children[0])
    if function.kind in _RISING | _COUNTS:
        counts = function.kind in _COUNTS and not node.fields.get("isDistinct")
        return Score(ScoreKind.RISING, counts, f"{_name(function)} never falls while its window is open")
    if function.kind in _FINAL:
        return Score(ScoreKind.FINAL, False, f"{_name(function)} can fall while its window is open")
    return Score(None, False, f"nothing is known about the aggregate {_name(function)}")


def _sum(added: Node) -> Score:
    if _zero_or_one(added):
        return Score(ScoreKind.RISING, True, "a sum of zeros and ones is a count")
    if _not_negative(added):
        return Score(ScoreKind.RISING, False, "a sum of what is never negative never falls")
    return Score(None, False, "a sum falls when it adds something negative")


def _branches(node: Node) -> list[Node]:
    if node.kind == "If":
        return list(node.children[1:])
    pairs, rest = divmod(len(node.children), 2)
    return [node.children[2 * i + 1] for i in range(pairs)] + ([node.children[-1]] if rest else [])


def _zero_or_one(node: Node) -> bool:
    if node.kind in ("CaseWhen", "If"):
        return all(_zero_or_one(branch) for branch in _branches(node))
    if node.kind in ("Cast", "Coalesce", "Alias"):
        return all(_zero_or_one(child) or _is_boolean(child) for child in node.children)
    return node.kind == "Literal" and node.fields.get("value") in ("0", "1", None)


def _is_boolean(node: Node) -> bool:
    comparisons = {
        "EqualTo", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual", "And", "Or", "Not", "IsNull",
        "IsNotNull", "RLike", "Like", "Contains", "StartsWith", "EndsWith", "In", "EqualNullSafe",
    }  # fmt: skip
    return node.kind in comparisons or node.fields.get("dataType") == "boolean"


def _not_negative(node: Node) -> bool:
    if node.kind == "Literal":
        value = node.fields.get("value")
        return value is None or not str(value).startswith("-")
    if node.kind in ("CaseWhen", "If"):
        return all(_not_negative(branch) for branch in _branches(node))
    if node.kind in _NEVER_NEGATIVE or _is_boolean(node):
        return True
    return node.kind in _POSITIVE_IF_PARTS_ARE | {"Alias"} and all(_not_negative(child) for child in node.children)


def _name(function: Node) -> str:
    names = {"HyperLogLogPlusPlus": "approx_count_distinct", "CollectSet": "collect_set", "Average": "an average"}
    return names.get(function.kind, function.kind.lower())
