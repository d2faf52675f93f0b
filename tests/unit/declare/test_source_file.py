"""What the file of a source may say, and how its faults are told: all, each with line, key and the nearest name."""

from pathlib import Path

import pytest

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.source import Format, Source, numbered_groups
from tocsin.declare.source_file import read_source

GOOD = """
title = "Visits"
owner = "web@example.com"
format = "json"
key = "visitor"
event_time = "at"

[schema]
visitor = "string"
at = "timestamp"
"""


def read(tmp_path: Path, text: str, name: str = "visits") -> Source:
    path = tmp_path / f"{name}.toml"
    path.write_text(text)
    return read_source(path)


def faults(tmp_path: Path, text: str, name: str = "visits") -> list[str]:
    """What is told about a file, without its path."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text, name)
    return [str(fault).removeprefix(f"{tmp_path}/{name}.toml") for fault in caught.value.faults]


def test_a_small_file_has_sound_defaults(tmp_path: Path) -> None:
    source = read(tmp_path, GOOD)
    assert (source.name, source.formats, source.event_time_format) == ("visits", (Format.JSON,), "iso8601")
    assert (source.partitions, source.max_bytes) == (4, 262_144)
    assert source.columns == {"visitor": "string", "at": "timestamp"}


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("", 5),
        ('lateness = "1 minute"', 30),
        ('lateness = "1 second"', 1),
        ('lateness = "1 minute"\nmax_ahead = "5 minutes"', 300),
    ],
)
def test_an_event_may_be_ahead_by_half_of_what_it_may_be_late(tmp_path: Path, given: str, seconds: int) -> None:
    assert read(tmp_path, f"{given}\n{GOOD}").max_ahead.total_seconds() == seconds


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    text = """
title = ""
ower = "web@example.com"
format = ["json", "key-valu"]
key = "visitr"
event_time = "note"
event_time_format = "iso-8601"
lateness = "ten seconds"
max_bytes = 0
partitions = "4"

[schema]
visitor = "strin"
"two words" = "string"
raw_offset = "bigint"

[optional]
note = "string"
Visitor = "int"
"""
    assert faults(tmp_path, text) == [
        ": owner: is missing",
        ":2: title: must be a non-empty text, not ''",
        ":3: ower: is not a key of a source; did you mean 'owner'?",
        ":4: format: must be 'json', 'key-value', 'logfmt', 'regex' or 'events', not 'key-valu';"
        " did you mean 'key-value'?",
        ":5: key: 'visitr' is not a column; did you mean 'visitor'?",
        ":6: event_time: 'note' may not be optional",
        ":7: event_time_format: 'iso-8601' is neither iso8601, epoch-seconds, epoch-milliseconds, epoch-microseconds, "
        "epoch-nanoseconds, syslog nor a pattern with month and day, as in yyyy-MM-dd HH:mm:ss; "
        "did you mean 'iso8601'?",
        ":8: lateness: 'ten seconds' is not a duration; write a number and a unit, such as '10 seconds' or '1 hour'",
        ":9: max_bytes: must be greater than or equal to 1, not 0",
        ":10: partitions: must be a valid integer, not '4'",
        ":13: schema.visitor: must be 'string', 'boolean', 'int', 'bigint', 'double' or 'timestamp', not 'strin';"
        " did you mean 'string'?",
        ":14: schema.two words: is not a column name: letters, digits and _ only, and no digit first",
        ":15: schema.raw_offset: is reserved for the event envelope; choose another",
        ":19: optional.Visitor: is already declared, as schema.visitor; column names ignore case",
    ]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (('"json"', '["json", "json"]'), ":4: format: must be one format, or json with one other"),
        (('"json"', '["regex", "key-value"]'), ":4: format: must be one format, or json with one other"),
        (('"json"', '["json", "events"]'), ":4: format: must be events alone"),
        (('"json"', '"events"'), ":6: event_time: is not for format events: a flow gives each event its time"),
        (('event_time = "at"', ""), ": event_time: is missing"),
        (('"at"', '"ingested_at"\nmax_ahead = "1 day"'), ":7: max_ahead: is not for event_time ingested_at, which"),
        (("key =", 'event_time_format = "HH:mm:ss"\nkey ='), ":5: event_time_format: 'HH:mm:ss' is neither iso8601"),
        (("key =", 'time_zone = "Berlin"\nkey ='), ":5: time_zone: must be a time zone such as Europe/Berlin, not"),
        (
            ("key =", 'event_time_format = "yyyy-MM-dd HH:mm:ssXXX"\ntime_zone = "Asia/Tokyo"\nkey ='),
            ":6: time_zone: is not for event_time_format yyyy-MM-dd HH:mm:ssXXX, which says the moment by itself",
        ),
        (
            ("key =", 'event_time_format = "d MMM EEE yyyy"\nkey ='),
            ":5: event_time_format: 'd MMM EEE yyyy' is neither",
        ),
        (("key =", 'event_time_format = "yyyy-mm-dd HH:mm"\nkey ='), ":5: event_time_format: 'yyyy-mm-dd HH:mm' is"),
        (("key =", 'event_time_format = "yyyy-MM-DD"\nkey ='), ":5: event_time_format: 'yyyy-MM-DD' is neither"),
        (("key =", 'event_time_format = "d MMM HH:MM:ss"\nkey ='), ":5: event_time_format: 'd MMM HH:MM:ss' is"),
        (("key =", 'event_time_format = "d MMM hh:mm:ss"\nkey ='), ":5: event_time_format: holds hours of 12 (h, K)"),
        (("key =", 'event_time_format = "yyyy-MM-dd HH:mm z"\nkey ='), ":5: event_time_format: holds z, the name of a"),
        (
            ("[schema]", '[zone_offsets]\nEST = "-5"\n[schema]'),
            ":9: zone_offsets.EST: must be an offset such as -05:00, not '-5'",
        ),
        (("[schema]", '[zone_offsets]\nEST = "-05:00"\n[schema]'), ": event_time_format: holds no z, so [zone_off"),
        (("key =", 'ignore = ["^#", "(a"]\nkey ='), ":5: ignore: '(a' is not a regular expression: missing )"),
        (("key =", 'ignore = "x*"\nkey ='), ":5: ignore: 'x*' is found in every record, so no event would be left"),
        (("key =", "ignore = []\nkey ="), ":5: ignore: must not be empty"),
        (('"json"', '"regex"'), ": pattern: is missing; format regex needs it"),
        (('"json"', "7"), ":4: format: must be 'json', 'key-value', 'logfmt', 'regex' or 'events', not 7"),
        (("key =", 'pattern = "(?<at>a)"\nkey ='), ":5: pattern: needs format regex"),
        (("key =", 'key_separator = "="\nkey ='), ":5: key_separator: needs format key-value"),
        (("web@example.com", "web"), ":3: owner: must be one e-mail address, not 'web'"),
        (("web@example.com", "web@example..com"), ":3: owner: must be one e-mail address, not 'web@example..com'"),
        (('at = "timestamp"', 'at = "bigint"'), ": event_time_format: a column of type bigint needs epoch-seconds or"),
        (('at = "timestamp"', 'at = "boolean"'), ":6: event_time: a boolean cannot hold a time"),
        (("[schema]\nvisitor", "schema = 5\n[optional]\nvisitor"), ":8: schema: must be keys with values, not 5"),
        (("[schema]", "[shema]"), ":8: shema: is not a key of a source; did you mean 'schema'?"),
        (('key = "visitor"', "key = 3"), ":5: key: must be a non-empty text, not 3"),
    ],
)
def test_a_fault_says_what_to_write(tmp_path: Path, change: tuple[str, str], told: str) -> None:
    assert any(fault.startswith(told) for fault in faults(tmp_path, GOOD.replace(*change)))


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        (r"(?<visitor>\\S+) (?<at>\\S+", "pattern: is not a regular expression: missing )"),
        (r"(?<visitr>\\S+) (?<at>\\S+)", "pattern: group 'visitr' is not a column; did you mean 'visitor'?"),
        (r"(?<visitor>\\S+)", "pattern: has no group for the column 'at', which is not optional"),
        (r"\\S+", "pattern: needs named groups, as in (?<user_id>[^ ]+)"),
        (r"(?<visitor>a)(?<visitor>b)(?<at>c)", "pattern: group 'visitor' occurs twice"),
        (r"(?<visitor>a(?<at>c))", "pattern: group 'at' lies inside another"),
    ],
)
def test_a_pattern_is_checked(tmp_path: Path, pattern: str, told: str) -> None:
    text = GOOD.replace('"json"', f'"regex"\npattern = "{pattern}"')
    assert any(told in fault for fault in faults(tmp_path, text))


@pytest.mark.parametrize("pattern", [r"(?<visitor>\p{Alpha}++) (?<at>\S+)\z", r"\Q(\E(?<visitor>\S+) (?<at>\S+)"])
def test_a_pattern_may_use_what_only_java_knows(tmp_path: Path, pattern: str) -> None:
    assert read(tmp_path, GOOD.replace('"json"', f"\"regex\"\npattern = '{pattern}'")).patterns == (pattern,)


def test_each_of_several_patterns_is_checked(tmp_path: Path) -> None:
    head = GOOD.replace('"json"', '"regex"')
    both = r"""pattern = ['(?<visitor>\S+) (?<at>\S+)', '(?<at>\S+) (?<visitor>\S+) (?<note>.*)']"""
    text = f"{both}\n{head}\n[optional]\nnote = 'string'\n"
    assert len(read(tmp_path, text).patterns) == 2
    (fault,) = faults(tmp_path, text.replace("(?<visitor>", "(", 1))
    assert fault == ":1: pattern: has no group for the column 'visitor', which is not optional"


def test_groups_get_numbers_because_java_names_have_no_underscore() -> None:
    plain, names = numbered_groups(r"(?<user_id>[^)(]+) (?:x|(y)) \((?<at>\S+)(?<=z)")
    assert (plain, names) == (r"([^)(]+) (?:x|(y)) \((\S+)(?<=z)", {"user_id": 1, "at": 3})


@pytest.mark.parametrize("name", ["Visits", "web visits", "a.b", "-x"])
def test_the_name_of_the_file_fits_a_topic(tmp_path: Path, name: str) -> None:
    (only,) = faults(tmp_path, GOOD, name)
    assert only.startswith(": the file name becomes part of topic names")


@pytest.mark.parametrize(
    "form",
    [
        "yyyy-MM-dd HH:mm:ss",
        "dd/MMM/yyyy:HH:mm:ss Z",
        "yyyy-MM-dd'T'HH:mm",
        "EEE MMM d HH:mm:ss yyyy",
        "yyyy-DDD KK:mm:ss a",
        "epoch-nanoseconds",
    ],
)
def test_event_times_may_have_a_pattern(tmp_path: Path, form: str) -> None:
    source = read(tmp_path, GOOD.replace("event_time =", f'event_time_format = "{form}"\nevent_time ='))
    assert source.event_time_format == form


def test_what_is_no_toml_or_cannot_be_read_is_told(tmp_path: Path) -> None:
    assert faults(tmp_path, "=")[0].startswith(": is not TOML")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_source(tmp_path / "none.toml")


@pytest.mark.parametrize("owner", ["ops@localhost", "ops@mail.local", "ops@corp", "o'neil+tocsin@example.com"])
def test_an_owner_may_have_an_address_within_the_company(tmp_path: Path, owner: str) -> None:
    assert read(tmp_path, GOOD.replace("web@example.com", owner)).owner == owner


def test_columns_that_are_looked_up(tmp_path: Path) -> None:
    more = '[enrich]\ncountry = { by = "visitor", file = "sources/networks.csv" }\n'
    source = read(tmp_path, GOOD + more)
    assert source.columns["country"] == "string"
    assert "country" in source.optional
    assert source.enrich["country"].file == tmp_path.parent / "sources/networks.csv"
    head = GOOD + "\n[enrich]\n"
    assert faults(tmp_path, f'{head}country = {{ by = "visitr", file = "../a.csv" }}\nsource = "x"') == [
        ":13: enrich.country.file: must be a .csv file in sources/, named from the project on as in"
        " \"sources/a.csv\", not '../a.csv'",
        ":14: enrich.source: is reserved for the event envelope; choose another",
        ":14: enrich.source: must be keys with values, not 'x'",
    ]
    assert faults(
        tmp_path,
        f"""{head}country = {{ by = "visitr", file = "sources/a.csv" }}
At = {{ by = "visitor", file = "sources/a.csv" }}
asn = {{ by = "at", file = "sources/a.csv" }}""",
    ) == [
        ":13: enrich.country: by: 'visitr' is not a column of its records; did you mean 'visitor'?",
        ":14: enrich.At: is already declared, as schema.at; column names ignore case",
        ":15: enrich.asn: by: 'at' must be a string that holds an IP address",
    ]


def test_columns_from_fields_of_any_name(tmp_path: Path) -> None:
    columns = GOOD + 'raw = "string"\nn = "int"\n'
    source = read(tmp_path, "match_case = true\n" + columns + '[from]\nvisitor = "@user.id"\nraw = "$"\n')
    assert (source.field_of("visitor"), source.field_of("at"), source.match_case) == ("@user.id", "at", True)
    told = faults(tmp_path, columns + '[from]\nvisitr = "x"\nn = "$"\nat = ""\n')
    assert told == [
        ":14: from.visitr: 'visitr' is not a column; did you mean 'visitor'?",
        ":15: from.n: the column of the whole record ($) must be a string",
        ":16: from.at: must be a non-empty text, not ''",
    ]


def test_patterns_have_no_paths_but_may_keep_the_whole_record(tmp_path: Path) -> None:
    text = GOOD.replace('"json"', '"regex"') + 'raw = "string"\n[from]\nraw = "$"\n'
    pattern = "pattern = '(?<visitor>a)(?<at>b)'\n"
    assert read(tmp_path, pattern + text).field_of("raw") == "$"
    (told,) = faults(tmp_path, pattern + text + 'at = "when"\n')
    assert "from.at: is not for patterns" in told
