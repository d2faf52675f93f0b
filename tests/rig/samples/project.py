"""The project that tests run: the shipped source and detector, whatever else a team has declared beside them."""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[3]
FILES = {
    "sources": ("logins.toml",),
    "detectors": ("failed_logins.py",),
    "expectations": ("logins.rows.json", "logins.day.json", "logins.findings.json"),
}


def copy_project(folder: Path, *kinds: str) -> None:
    """Copy the files of `kinds` ("sources", "detectors", "expectations"; the first two by default) into `folder`."""
    for kind in kinds or ("sources", "detectors"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for name in FILES[kind]:
            shutil.copy(ROOT / kind / name, folder / kind / name)


def source_file(key: str = "user_id", **columns: str) -> str:
    """The text of a source of JSON: its `key`, the time `at`, and further `columns`."""
    schema = "".join(f'{name} = "{kind}"\n' for name, kind in ({key: "string", "at": "timestamp"} | columns).items())
    head = 'title = "T"\nowner = "a@example.com"\nformat = "json"\n'
    return f'{head}key = "{key}"\nevent_time = "at"\n[schema]\n{schema}'
