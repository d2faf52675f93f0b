"""The picture of what grows is that of the figures beside it, and marks where a curve bends."""

from bench.growth import FILE, PICTURE, Point, _slopes, picture
from tocsin.setup.paths import here


def test_the_picture_in_the_docs_is_drawn_from_the_figures_beside_it() -> None:
    root = here().root
    assert (root / PICTURE).read_text(encoding="utf-8") == picture(root / FILE)


def test_a_curve_bends_where_one_more_takes_twice_what_it_took_at_first() -> None:
    cpu = {1: 10.0, 2: 12.0, 4: 17.0, 8: 37.0}
    points = [Point("detectors", size, value, 0, 1, 1) for size, value in cpu.items()]
    points += [Point("days", 1, 900.0, 0, 1, 1)]
    assert [slope for _, slope in _slopes(points)] == ["", "2", "2.5", "5 bends", ""]
