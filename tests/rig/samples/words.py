"""A small source of words, and a view that counts them."""

from pathlib import Path

_SOURCE = """title = "Words"
owner = "search@example.com"
format = "json"
key = "word"
event_time = "at"
event_time_format = "iso8601"
lateness = "10 seconds"

[schema]
at = "timestamp"
word = "string"
"""


def declare_words(project: Path, view: str = "word_counts", window: str | None = "10 seconds", **keywords: str) -> None:
    """Write the file of the source `words`, and that of a live view of it with these keywords besides its key."""
    given = {"window": window, "owner": "search@example.com", "stage": "live"} | keywords
    declaration = ", ".join(f"{name}={value!r}" for name, value in given.items())
    query = f'''"""Counts words."""
from tocsin import view
@view(source="words", key="word", {declaration})
def view(events):
    return events
'''
    for path, text in ((f"views/{view}.py", query), ("sources/words.toml", _SOURCE)):
        (project / path).parent.mkdir(exist_ok=True)
        (project / path).write_text(text)
