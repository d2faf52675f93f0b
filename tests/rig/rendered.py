"""What a page or a mail must never show: traces of the program that rendered it."""

import html
import re

_SLIPS = re.compile(
    r"<built-in[^\n]{0,60}|<[\w.]+ object at 0x\w+|<bound method[^\n]{0,60}|\bNone\b|\{\{ *[a-z][^\n]{0,60}"
)


def slips(text: str) -> list[str]:
    """List the traces in `text`, HTML or plain."""
    return _SLIPS.findall(html.unescape(text))
