"""The stage in a detector's file is changed, and no other byte."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tocsin.detect.stage_edit import set_stage, with_stage
from tocsin.model.detector import Stage
from tocsin.model.errors import ConfigError, TransientError

FILE = '''"""Ümlaute, and stage="shadow" in words."""
stage = "shadow"  # not this one


@other(stage="shadow")
@detector(source="é", note="shadow", STAGE, owner="a@example.com")
def detect(events):
    return dict(stage="shadow")
'''


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("beginning", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize(
    ("written", "becomes"),
    [
        ('stage="shadow"', 'stage="live"'),
        ("stage='shadow'", "stage='live'"),
        ("stage = 'shadow'", "stage = 'live'"),
        ('stage="""shadow"""', 'stage="live"'),
        ('stage=("sha"\n "dow")', 'stage=("live")'),
        ('stage=r"shadow"', 'stage="live"'),
        ('stage="\\x73hadow"', 'stage="live"'),
        ('\n    stage=  # why\n    "shadow"', '\n    stage=  # why\n    "live"'),
    ],
)
def test_only_the_literal_is_changed(written: str, becomes: str, ends: str, beginning: bytes) -> None:
    def file(text: str) -> bytes:
        return beginning + FILE.replace("STAGE", text).replace("\n", ends).encode()

    assert with_stage(file(written), Stage.LIVE) == file(becomes)


def test_the_file_keeps_its_mode_and_a_link_stays_one(tmp_path: Path) -> None:
    file, link = tmp_path / "real.py", tmp_path / "link.py"
    content = FILE.replace("STAGE", 'stage="shadow"').encode()
    file.write_bytes(content)
    file.chmod(0o640)
    link.symlink_to(file)
    umask = os.umask(0)
    try:
        set_stage(link, content, Stage.LIVE)
    finally:
        os.umask(umask)
    assert link.is_symlink()
    assert file.read_bytes() == FILE.replace("STAGE", 'stage="live"').encode()
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_file_that_has_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    content = FILE.replace("STAGE", 'stage="shadow"').encode()
    file.write_bytes(content + b"# more\n")
    with pytest.raises(TransientError, match="has changed meanwhile"):
        set_stage(file, content, Stage.LIVE)
    assert file.read_bytes() == content + b"# more\n"


def test_without_a_literal_it_is_to_be_changed_by_hand(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(FILE.replace("STAGE", "stage=chosen()"))
    with pytest.raises(ConfigError, match="change it by hand"):
        set_stage(file, file.read_bytes(), Stage.LIVE)
