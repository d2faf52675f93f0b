from __future__ import annotations

import pytest

from tocsin.declare.model.sizes import entity_text, number, score_text


@pytest.mark.parametrize(
    ("score", "shown"),
    [(120, "120"), (1_234_567, "1,234,567"), (0.1834, "0.183"), (3.14159, "3.14"), (-2.5, "-2.50"), (1e300, "1e+300")],
)
def test_scores_are_written_as_people_write_them(score: float, shown: str) -> None:
    assert number(score) == shown


def test_an_entity_of_one_column_is_its_value_and_a_lower_bound_is_marked() -> None:
    assert (entity_text({"user_id": "mallory"}), entity_text({"ip": "10.0.0.1", "port": "22"})) == (
        "mallory",
        "ip=10.0.0.1, port=22",
    )
    assert (score_text(120, at_least=True), score_text(0.5, at_least=False)) == ("at least 120", "0.5")
