from __future__ import annotations

from pathlib import Path

from tocsin.web.page_data import LOG_LINES, tail_of


def test_a_short_log_is_shown_whole(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("one\r\n\ttwo\nthree", encoding="utf-8")
    told = tail_of(log)
    assert (told.lines, told.cut) == (["one", "    two", "three"], False)
    assert told.written_at == log.stat().st_mtime


def test_of_a_long_one_the_last_lines_and_no_torn_one(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("".join(f"{number:05} {'x' * 994}\n" for number in range(5000)), encoding="utf-8")
    told = tail_of(log)
    assert told.cut
    assert 100 < len(told.lines) <= LOG_LINES
    assert [int(line[:5]) for line in told.lines] == list(range(5000 - len(told.lines), 5000))


def test_a_line_without_end_is_cut(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("x" * 100_000, encoding="utf-8")
    (line,) = tail_of(log).lines
    assert len(line) < 2100
    assert line.endswith("… (98,000 more characters)")


def test_nothing_in_it_hides_or_moves(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"\x1b[2Jgone \xe2\x80\xae \xff <b>\n")
    assert tail_of(log).lines == ["\\x1b[2Jgone \\u202e \ufffd <b>"]


def test_no_log_is_no_error(tmp_path: Path) -> None:
    told = tail_of(tmp_path / "none.log")
    assert (told.lines, told.written_at) == ([], None)
    assert tail_of(tmp_path).lines == [], "nor is a folder"


def test_a_search_finds_the_last_lines_with_a_text_also_far_up(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text("".join(f"line {n} {'ERROR [x]' if n % 1000 == 0 else 'fine'}\n" for n in range(20_000)))
    found = tail_of(path, "error [X]")
    assert [found.lines[0], found.lines[-1], found.cut] == ["line 0 ERROR [x]", "line 19000 ERROR [x]", False]
    assert tail_of(path, "nowhere").lines == []
