"""Find what the code of a declared file reads besides events, with `ast`: files, the clock, chance, the network.

A result that depends on such a thing is another one after a restart, in a backfill and in a test. Only code that its
job runs counts: statements at the top of the file, the declared function, and what these use.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

_FILE = "reads or writes files; declare the rows in tables/ and join them (docs/write/tables.md)"
_MODEL = "reads a model from a file, of which no version knows; declare a model (docs/write/models.md)"
_PATH = "imports what no version knows; put it into lib/ and import it from there (docs/write/packages.md)"
_CLOCK = "reads the clock; use event_time, the time of the event"
_WAIT = "waits, and all events with it; leave it out"
_CHANCE = "is left to chance; derive the value from the event, as F.xxhash64(column) does"
_SEED = "is left to chance; make a generator with a seed, numpy.random.default_rng(0), or give it as random_state=0"
_NETWORK = "uses the network or a database; declare the rows in tables/ and join them (docs/write/tables.md)"
_MACHINE = "differs from one machine to the next; write the value into the file"
_ORDER = "depends on how Spark divides the work; raw_topic, raw_partition and raw_offset identify an event"

# F. stands for pyspark.sql.functions; () for a call without arguments, read_* and scan_* for all names that begin so;
# a name includes all below it.
_REFUSED = {
    _FILE: """open input io.open io.FileIO os.open os.listdir os.scandir os.walk os.stat os.remove os.rename os.mkdir
        os.makedirs os.system os.popen os.path.exists os.path.isfile os.path.isdir os.path.getsize os.path.getmtime
        pathlib.Path glob shutil tempfile fileinput shelve dbm subprocess linecache importlib.resources pkgutil.get_data
        pandas.read_* polars.read_* polars.scan_* numpy.load numpy.loadtxt numpy.genfromtxt numpy.fromfile
        numpy.memmap pyarrow.parquet pyarrow.csv pyarrow.fs pyarrow.dataset pickle.load pickle.Unpickler dill.load
        scipy.io.loadmat""",
    _MODEL: """joblib.load torch.load torch.jit.load skops.io.load onnxruntime.InferenceSession onnx.load
        safetensors.safe_open safetensors.torch.load_file keras.models.load_model tensorflow.keras.models.load_model
        tensorflow.saved_model.load transformers.pipeline""",
    _PATH: "sys.path importlib.import_module importlib.util __import__ site.addsitedir runpy",
    _CLOCK: """time.time time.time_ns time.monotonic time.monotonic_ns time.perf_counter time.perf_counter_ns
        time.process_time time.localtime() time.gmtime() time.ctime() time.asctime() datetime.datetime.now
        datetime.datetime.utcnow datetime.datetime.today datetime.date.today pandas.Timestamp.now
        pandas.Timestamp.utcnow pandas.Timestamp.today F.current_timestamp F.current_date F.current_time F.now
        F.localtimestamp F.curdate F.unix_timestamp()""",
    _WAIT: "time.sleep",
    _CHANCE: """random secrets uuid.uuid1 uuid.uuid4 os.urandom numpy.random F.rand F.randn F.randstr F.uniform F.uuid
        F.shuffle""",
    _NETWORK: """socket ssl urllib.request urllib3 http.client requests httpx aiohttp ftplib smtplib imaplib poplib
        xmlrpc boto3 botocore paramiko sqlite3 sqlalchemy psycopg psycopg2 pymysql redis kafka
        confluent_kafka duckdb""",
    _MACHINE: "os.environ os.getenv os.getcwd os.getpid os.uname os.cpu_count",
    _ORDER: "F.monotonically_increasing_id F.spark_partition_id F.input_file_name",
}
_REASONS = {name: why for why, names in _REFUSED.items() for name in names.split()}
_FUNCTIONS = "pyspark.sql.functions."
TRAIN = "train"
_NUMBER = "0"
"""What a name of a whole number stands for, as the names of imports stand for what they import."""
_GENERATORS = ("numpy.random.default_rng", "numpy.random.RandomState", "random.Random")
_OF_SESSION = ("sql", "table", "read", "readStream", "catalog")
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, order=True)
class OutsideRead:
    """One place that reads something else than events: its line, and what is wrong and what to do instead."""

    line: int
    what: str


def outside_reads(tree: ast.Module, functions: Collection[str]) -> list[OutsideRead]:
    """List the places of `tree` that read something else than events in code that runs at import or by `functions`.

    `train`, if it is one of them, and what it alone uses may make generators of random numbers with a seed: that runs
    once for a model.
    """
    defined = {node.name: node for node in tree.body if isinstance(node, _Definition)}
    at_import = [part for statement in tree.body for part in _run_at_import(statement)]
    own = {*defined, *_bound(at_import)}
    names = {name: full for name, full in _imports(tree).items() if name not in own} | _whole_numbers(tree)
    found = set(_reads(at_import, names))
    judging = reached(defined, {*functions, *_used(at_import)} - {TRAIN})
    for name in judging | reached(defined, {TRAIN} & {*functions}):
        known = {bound: full for bound, full in names.items() if bound not in _bound([defined[name]])}
        found |= set(_reads([defined[name]], known, may_seed=name not in judging))
    return sorted(found)


def reached(defined: Mapping[str, ast.AST], names: Collection[str]) -> set[str]:
    """List those of `defined` that `names` are, or use, directly or by way of others."""
    found, waiting = set[str](), {*names} & defined.keys()
    while waiting:
        found |= waiting
        waiting = {used for name in waiting for used in _used([defined[name]])} & defined.keys() - found
    return found


def _run_at_import(statement: ast.stmt) -> Iterator[ast.AST]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from (*statement.decorator_list, *statement.args.defaults, *filter(None, statement.args.kw_defaults))
    elif isinstance(statement, ast.ClassDef):
        yield from (*statement.decorator_list, *statement.bases)
        for inner in statement.body:
            yield from _run_at_import(inner)
    elif not (isinstance(statement, ast.If) and ast.unparse(statement.test) == "__name__ == '__main__'"):
        yield statement


def _imports(tree: ast.Module) -> dict[str, str]:
    names = {"open": "open", "input": "input", "__import__": "__import__"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
            names |= dict.fromkeys({alias.name.partition(".")[0] for alias in node.names if not alias.asname}, "")
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return {name: full or name for name, full in names.items()}


def _whole_numbers(tree: ast.Module) -> dict[str, str]:
    return {
        target.id: _NUMBER
        for node in tree.body
        if isinstance(node, ast.Assign) and _is_whole_number(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _is_whole_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int)


def _walk(code: ast.AST) -> Iterator[ast.AST]:
    """Yield `code` and all below it but the annotations, which nothing evaluates for its value."""
    yield code
    for field, value in ast.iter_fields(code):
        if field not in ("annotation", "returns"):
            for inner in value if isinstance(value, list) else [value]:
                if isinstance(inner, ast.AST):
                    yield from _walk(inner)


def _used(code: Collection[ast.AST]) -> set[str]:
    nodes = [node for part in code for node in _walk(part)]
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _bound(code: Collection[ast.AST]) -> set[str]:
    nodes = [node for part in code for node in _walk(part)]
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | {node.arg for node in nodes if isinstance(node, ast.arg)}


def _reads(code: Collection[ast.AST], names: dict[str, str], *, may_seed: bool = False) -> Iterator[OutsideRead]:
    nodes = [node for part in code for node in _walk(part)]
    bare = {id(node.func) for node in nodes if isinstance(node, ast.Call) and not (node.args or node.keywords)}
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    seeded = {id(node.func) for node in nodes if may_seed and isinstance(node, ast.Call) and _is_seeded(node, names)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and _reads_by_session(node):
            yield OutsideRead(node.lineno, f"{_text(node)} {_FILE}")
        elif isinstance(node, ast.Name | ast.Attribute) and id(node) not in inner | seeded:
            why = _reason(_full_name(node, names), is_bare=id(node) in bare)
            if why is not None:
                yield OutsideRead(node.lineno, f"{_text(node)} {_SEED if may_seed and why == _CHANCE else why}")


def _is_seeded(call: ast.Call, names: dict[str, str]) -> bool:
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    is_number = len(given) == 1 and (_is_whole_number(given[0]) or _full_name(given[0], names) == _NUMBER)
    return is_number and _full_name(call.func, names) in _GENERATORS


def _reads_by_session(node: ast.Attribute) -> bool:
    owner = ast.unparse(node.value)
    return node.attr in _OF_SESSION and (owner == "spark" or "sparkSession" in owner or "SparkSession" in owner)


def _full_name(node: ast.expr, names: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        owner = _full_name(node.value, names)
        return owner and f"{owner}.{node.attr}"
    return names.get(node.id, "") if isinstance(node, ast.Name) else ""


def _reason(name: str, *, is_bare: bool) -> str | None:
    parts = name.replace(_FUNCTIONS, "F.", 1).split(".")
    known = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    known += [f"{known[-1]}()"] if is_bare else []
    known += [re.sub(r"(\.(?:read|scan)_)\w+$", r"\1*", name) for name in known]
    return next((_REASONS[call] for call in known if call in _REASONS), None)


def _text(node: ast.expr) -> str:
    return ast.unparse(node)[-80:]
