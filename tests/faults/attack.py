"""Hostile records, generated: each is wrong, too large or misleading in its own way. Pure and seeded.

Innocent logins lie between them, with a truth of their own. A hostile record never carries an innocent user's name,
unless it forges the headers of a replay; that is the point of those.
"""

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.rig.load import WINDOW_MICROS, Truth, iso, line
from tocsin.ingest.parsing_rules import INGESTED_AT_HEADER, ORIGIN_HEADER, REPLAYS_HEADER

ADDRESS = "192.0.2.7"
"""Of all innocent logins; no hostile record carries it."""

Headers = tuple[tuple[str, bytes], ...]
BURSTS = {"ann": 3, "bea": 5, "cyd": 6, "dan": 60, "eve": 100, "fay": 101, "gus": 120}
_NUMBERS = (
    "NaN", "Infinity", "-Infinity", "1e400", "-1e400", "-0", "-0.0", "1e-400", "9223372036854775807",
    "9223372036854775808", "-9223372036854775809", "1e2147483648", "0." + "0" * 5_000 + "1", "9" * 20_000, "0x10",
    "+1", "01", ".5", "1.", "1e", "1_000", "\u0663", "1" + "0" * 400,
)  # fmt: skip
_TIMES = (
    "0000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "-0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z",
    "10000-01-01T00:00:00Z", "+294247-01-10T04:00:54.775807Z", "2016-12-31T23:59:60Z", "2026-06-30T23:59:61Z",
    "2026-02-29T00:00:00Z", "2026-13-01T00:00:00Z", "2026-01-01T24:00:00Z", "2026-01-01T00:00:00+18:00",
    "2026-01-01T00:00:00+18:01", "2026-01-01T00:00:00-99:99", "1969-12-31T23:59:59Z", "1582-10-10T00:00:00Z",
    "2026-03-29T02:30:00 Europe/Berlin", "2026-10-25T02:30:00[Europe/Berlin]", "now", "today", "epoch", "yesterday",
    "2026-01-01T00:00:00.1234567890Z", "-1", "-62135596800", "253402300800", "1e18", "9223372036854775807", "T", "Z",
    "\uff12\uff10\uff12\uff16-01-01T00:00:00Z", "2026-01-01T00:00:00Z\x00", "2026-W01-1", "2026-001",
)  # fmt: skip
_NAMES = (
    "'; DROP TABLE findings; --", "\" OR 1=1 --", "<script>alert(1)</script>", "<img src=x onerror=alert(1)>",
    "=HYPERLINK(\"http://x\",\"y\")", "@SUM(1+1)*cmd|' /C calc'!A0", "-2+3", "{{7*7}}", "${jndi:ldap://x}", "%s%n%x",
    "../../etc/passwd", "a\r\nBcc: x@example.com", "\u202eevil", "\u0000", "\ufeffbom", "\u2028line", "a | user_id: b",
    "\x1b[31mred\x1b[0m", "\U0010ffff", "\U0001f600" * 50, "\u0301" * 100, " ", "\t", "null", "true", "\\", "\\u0000",
)  # fmt: skip


@dataclass(frozen=True)
class Record:
    """One raw record.

    Attributes:
        micros: event time of an innocent record.
        forged: its headers claim another's identity.
    """

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int = 0
    micros: int = 0
    forged: bool = False


@dataclass(frozen=True)
class Sizes:
    """Bytes of the largest parts: of a value, a key, one header, an entity; and how many headers."""

    value: int = 2_000_000
    key: int = 1_400_000
    header: int = 1_400_000
    entity: int = 180_000
    headers: int = 10_000


@dataclass
class Attack:
    """All records, and what must be found in spite of them.

    Attributes:
        long_entity: whose logins failed 60 times.
    """

    records: list[Record] = field(default_factory=list)
    truth: Truth = field(default_factory=Truth)
    long_entity: str = ""


def attack(seed: int, count: int, now: int, topic: str, sizes: Sizes | None = None) -> Attack:
    """`count` records for the empty raw `topic`, two thirds of them hostile at least; `now` in microseconds since 1970.

    All innocent logins lie in the window of `now`, and before it.
    """
    chance, sizes = random.Random(seed), Sizes() if sizes is None else sizes
    made = Attack(long_entity="\x01" * sizes.entity)
    innocent = _innocent(now, made.truth)
    hostile = [Record(_line(made.long_entity, now), partition=1) for _ in range(60)]
    hostile += _largest(sizes, now)
    kinds = _kinds(chance, now)
    hostile += [chance.choice(kinds)() for _ in range(count - len(hostile) - 2 * len(innocent))]
    rest = [*innocent, *hostile]
    chance.shuffle(rest)
    # Who claims an identity comes first: else the claim would be what is dropped.
    made.records = [*_forged(rest, set(innocent), topic, now), *rest]
    made.truth.sent = len(made.records)
    return made


def _innocent(now: int, truth: Truth) -> list[Record]:
    start = now - now % WINDOW_MICROS
    found = []
    for number, (user, count) in enumerate(BURSTS.items()):
        for one in range(count):
            micros = start + (now - start) * one // count + number
            value = line(user, micros) if one % 2 else _login(micros, user_id=user, ip_address=ADDRESS)
            found.append(Record(value, user.encode(), partition=number % 2, micros=micros))
        truth.failed[user, start] = count
    return found


def _forged(rest: list[Record], innocent: set[Record], topic: str, now: int) -> list[Record]:
    """For each innocent record one that claims its identity, at the same time."""
    claimed, offsets = [], Counter[int]({0: len(innocent)})
    for record in rest:
        if record in innocent:
            claimed.append((record, f"{topic}/{record.partition}/{offsets[record.partition]}"))
        offsets[record.partition] += 1
    made = []
    for record, origin in claimed:
        headers = _replay(origin, iso(now - 1_000_000), "1")
        made.append(Record(_login(record.micros, user_id="mallory"), b"mallory", headers, forged=True))
    return made


def _replay(origin: str, ingested_at: str, replays: str) -> Headers:
    names = (ORIGIN_HEADER, INGESTED_AT_HEADER, REPLAYS_HEADER)
    return tuple(zip(names, (text.encode() for text in (origin, ingested_at, replays)), strict=True))


def _largest(sizes: Sizes, now: int) -> list[Record]:
    """Each part at its largest, and all together."""
    small, long = _login(now, user_id="large"), (("h", b"\x00" * sizes.header),)
    many = tuple((f"name-{number}", b"\xff") for number in range(sizes.headers))
    return [
        Record(b"{" + b" " * sizes.value),
        Record(b"\x01" * sizes.value),
        Record(_login(now, user_id="large", message="m" * (sizes.value // 2))),
        Record(small, b"k" * sizes.key),
        Record(b"\x00" * 270_000, b"\x00" * sizes.key),
        Record(small, None, long),
        Record(small, None, many),
        Record(b"not a login", b"\xff" * 300_000, (*many, *long)),
        Record(_login(now, **{f"field{number}": number for number in range(5_000)})),
    ]


def _kinds(chance: random.Random, now: int) -> list[Callable[[], Record]]:
    """Makers of one hostile record each."""

    def login(**fields: object) -> bytes:
        return _login(now, **{"user_id": f"u{chance.randrange(10**9)}"} | fields)

    def record(value: bytes | None, key: bytes | None = None, headers: Headers = ()) -> Record:
        return Record(value, key, headers, partition=chance.randrange(2))

    def field() -> str:
        return chance.choice(("user_id", "timestamp", "ip_address", "action", "message", "unknown"))

    def raw(value: str) -> bytes:
        return b'{"%s": %s, %s' % (field().encode(), value.encode("utf-8", "surrogatepass"), login()[1:])

    def planes() -> str:
        return "".join(chr(_scalar(chance)) for _ in range(chance.randrange(1, 40)))

    def deep() -> str:
        depth = chance.choice((10, 900, 1_001, 5_000))
        return chance.choice(("[" * depth, "[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth))

    def header() -> Headers:
        texts = (
            "",
            "x",
            f"{chance.randrange(9)}",
            "raw.logins/0/1",
            "/0/0",
            "a/b/c",
            "9" * 30,
            "-1",
            "2026-01-01",
            "\ud800",
        )
        names = (ORIGIN_HEADER, INGESTED_AT_HEADER, REPLAYS_HEADER, "", "x", "TOCSIN-ORIGIN", ORIGIN_HEADER)
        pick = chance.sample(names, chance.randrange(1, len(names)))
        return tuple((name, chance.choice(texts).encode("utf-8", "surrogatepass")) for name in pick)

    def key() -> bytes | None:
        return chance.choice((None, b"", b"\x00", b"\xff\xfe", b"x" * 5_000, planes().encode()))

    values: tuple[object, ...] = (None, True, [], {}, [1], {"a": {"b": 1}}, -1, 1.5, "", " ", 10**30)
    return [
        lambda: record(
            chance.choice((None, b"", b" ", b"\n", b"\x00", b"{}", b"[]", b"null", b"{", b"}", b"\xef\xbb\xbf"))
        ),
        lambda: record(chance.randbytes(chance.randrange(1, 300))),
        lambda: record(login(user_id=planes(), message=planes())),
        lambda: record(login().replace(b"192", chr(chance.randrange(0xD800, 0xE000)).encode("utf-8", "surrogatepass"))),
        lambda: record(raw(f'"\\u{chance.randrange(0xD800, 0xE000):04x}"')),
        lambda: record(login().decode().encode(chance.choice(("utf-16", "utf-32", "utf-8-sig")))),
        lambda: record(raw(deep())),
        lambda: record(raw(chance.choice(_NUMBERS))),
        lambda: record(login(timestamp=chance.choice(_TIMES))),
        lambda: record(_line("t", now).replace(iso(now).encode(), chance.choice(_TIMES).encode())),
        lambda: record(login(**{field(): chance.choice(values)})),
        lambda: record(raw('"first", "' + field() + '": "second"')),
        lambda: record(login(), key(), header()),
        lambda: record(login(user_id=chance.choice(_NAMES), message=chance.choice(_NAMES))),
        lambda: record(_line(chance.choice(_NAMES), now)[: chance.randrange(200)]),
        lambda: record(
            login(timestamp=iso(now + chance.choice((-9_000_000, 2_000_000, 3_000_000, 10**13, -(10**15)))))
        ),
    ]


def _scalar(chance: random.Random) -> int:
    """A code point of any plane that is no surrogate."""
    point = chance.randrange(17) * 0x10000 + chance.randrange(0x10000)
    return point if not 0xD800 <= point < 0xE000 else 0xFFFD


def _login(micros: int, **fields: object) -> bytes:
    base = {"user_id": "large", "timestamp": iso(micros), "ip_address": "198.51.100.9", "action": "login failed"}
    return json.dumps(base | fields).encode()


def _line(user: str, micros: int) -> bytes:
    return line(user, micros).replace(ADDRESS.encode(), b"203.0.113.1")
