"""What must be true of the repository as a whole: nothing foreign, short functions, papers that tell the truth."""

import ast
import importlib
import re
import subprocess
import tomllib
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tocsin.cases.mutation import faults_of_cases
from tocsin.declare.catalog import read_catalog
from tocsin.declare.declaration import read_spec

ROOT = Path(__file__).resolve().parents[2]

# In two parts, so that this file does not find itself.
REGISTRIES = [
    *(("pypi", ".org"), ("pythonhosted", ".org"), ("npmjs", ".org"), ("npmjs", ".com"), ("maven", ".org")),
    *(("maven.apache", ".org"), ("docker", ".io"), ("ghcr", ".io"), ("quay", ".io"), ("packages.confluent", ".io")),
]
MACHINE_PATHS = [("/wo", "rk/"), ("/ho", "me/"), ("/ro", "ot/"), ("/Us", "ers/"), ("/tmp/", "lab")]
ROOMS = {
    *("airflow", "alerts", "cases", "cli", "declare", "detect", "dev", "history", "ingest"),
    *("platform", "quality", "setup", "spark", "stats", "supervise", "views", "web"),
}
TOP = {
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "Makefile", "pyproject.toml"),
    *("locks", "docker-compose.yml", "sources", "detectors", "examples", "spark_jobs", "bench", "src", "tests", "docs"),
}
PLANNED_TOP = {"expectations", "dags"}
TUTORIALS = [ROOT / "docs" / "write" / name for name in ("tutorial.md", "tutorial-views.md")]
TUTORIAL_PART = re.compile(
    r"`((?:sources|detectors|flows|views)/\w+\.\w+)`|^```(?:toml|python)\n(.*?)^```", re.DOTALL | re.MULTILINE
)
BESIDE = {
    *(".ci", ".dockerignore", ".editorconfig", ".env.example", ".gitattributes", ".gitignore"),
    *(".hadolint.yaml", ".yamllint.yaml", "Dockerfile"),
}


@cache
def tracked() -> tuple[Path, ...]:
    """Every file of the repository that exists, committed or about to be."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    return tuple(ROOT / name for name in sorted(listed) if name and (ROOT / name).is_file())


def texts() -> list[tuple[Path, str]]:
    found = []
    for path in tracked():
        try:
            found.append((path.relative_to(ROOT), path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue
    return found


def python_files(*folders: str) -> list[Path]:
    return [path for path in tracked() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in folders]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(parsed(path)))


def where(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_list_of_files_is_not_empty() -> None:
    assert {"pyproject.toml", "README.md"} <= {where(path) for path in tracked()}
    assert len(python_files("src")) > 20


def test_no_registry_is_named() -> None:
    hosts = [first + last for first, last in REGISTRIES]
    assert [(str(path), host) for path, text in texts() for host in hosts if host in text] == []


def test_no_path_of_a_machine_is_named() -> None:
    paths = [first + last for first, last in MACHINE_PATHS]
    assert [(str(path), found) for path, text in texts() for found in paths if found in text] == []


def test_no_file_is_larger_than_a_megabyte() -> None:
    assert [where(path) for path in tracked() if path.stat().st_size > 1_000_000] == []


def test_the_house_has_its_rooms_and_no_others() -> None:
    top = {path.relative_to(ROOT).parts[0] for path in tracked()}
    assert top >= TOP
    assert top <= TOP | PLANNED_TOP | BESIDE
    rooms = {path.relative_to(ROOT).parts[2] for path in python_files("src") if len(path.relative_to(ROOT).parts) > 3}
    assert rooms == ROOMS


def test_functions_keep_their_budget() -> None:
    long = []
    for path in python_files("src", "detectors", "spark_jobs", "dags"):
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                size = node.end_lineno - node.lineno + 1
                long += [f"{where(path)}:{node.lineno} {node.name}: {size} lines"] if size > 40 else []
    assert long == []


def test_no_module_is_named_by_what_it_is_not() -> None:
    vague = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}
    parts = {where(path): {*path.relative_to(ROOT).with_suffix("").parts} for path in tracked()}
    assert [name for name, words in parts.items() if words & vague] == []


def test_tests_import_neither_tests_nor_from_another_folder_of_tests() -> None:
    """What several folders need lies in tests/rig, which a change of a test cannot break."""
    wrong = []
    for path in python_files("tests"):
        own = path.relative_to(ROOT / "tests").parts[0]
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "tests":
                folder, *modules = [*(node.module or "").split(".")[1:], *(alias.name for alias in node.names)]
                is_test = any(name.startswith("test_") for name in modules)
                wrong += [f"{where(path)}:{node.lineno}"] if is_test or folder not in {own, "rig"} else []
    assert wrong == []


def imported_by(path: Path) -> set[str]:
    """Modules and names that a file imports anywhere in it, for types too."""
    nodes = nodes_of(path)
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            modules |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return modules


def test_no_files_import_each_other() -> None:
    """Inside a room import-linter does not look."""
    name = {
        path: where(path).removeprefix("src/").removesuffix(".py").replace("/", ".") for path in python_files("src")
    }
    order = TopologicalSorter({name[path]: imported_by(path) & {*name.values()} - {name[path]} for path in name})
    order.prepare()  # raises an error with the names of the files


def test_the_airflow_room_holds_adapters_only() -> None:
    """A module that does without Airflow, and without the FastAPI of its server, belongs to the room of its purpose."""
    room = [path for path in python_files("src") if "tocsin/airflow/" in where(path) and path.stem != "__init__"]
    roots = {where(path): {name.partition(".")[0] for name in imported_by(path)} for path in room}
    assert [name for name, found in roots.items() if not found & {"airflow", "fastapi"}] == []


def test_every_exported_name_exists() -> None:
    for path in python_files("src"):
        if "__all__" not in path.read_text(encoding="utf-8"):
            continue
        name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        module = importlib.import_module(name)
        assert [export for export in module.__all__ if not hasattr(module, export)] == [], name


def test_nothing_is_left_for_later() -> None:
    # Behind a # alone: in patterns of times the three letters are an offset.
    marks = re.compile(r"\b(TO" r"DO|FIX" r"ME)\b|#\s*X" r"XX\b")
    assert [str(path) for path, text in texts() if marks.search(text)] == []


def markdown() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".md"]


@pytest.mark.parametrize("path", markdown(), ids=where)
def test_links_of_the_papers_resolve(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        linked = path.parent / file if file else path
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            broken.append(target)
    assert broken == []


def anchors(path: Path) -> set[str]:
    """Anchors of a Markdown file: those that it names, and those of its headings, as they are formed on the web."""
    text = path.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ +(.*)$", text, re.MULTILINE)
    return {*re.findall(r'<a id="(\w+)"></a>', text)} | {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings
    }


def test_what_the_papers_name_in_the_tree_exists() -> None:
    named = re.compile(r"`((?:src|docs|tests|detectors|sources|spark_jobs|locks|bench)/[\w./-]+)`")
    missing = []
    for path in markdown():
        if path in TUTORIALS:  # its reader makes the files that it names
            continue
        for name in named.findall(path.read_text(encoding="utf-8")):
            missing += [f"{where(path)}: {name}"] if not (ROOT / name).exists() else []
    assert missing == []


def test_modules_that_the_papers_name_exist() -> None:
    missing = []
    for path in (page for page in markdown() if page.name != "CHANGELOG.md"):  # which tells of the past
        for name in re.findall(r"`(tocsin(?:\.\w+){2,})`", path.read_text(encoding="utf-8")):
            place = ROOT / "src" / name.replace(".", "/")
            within = place.parent.with_suffix(".py")
            is_inside = within.is_file() and re.search(rf"\b{place.name}\b", within.read_text(encoding="utf-8"))
            if not (place.is_dir() or place.with_suffix(".py").is_file() or is_inside):
                missing.append(f"{where(path)}: {name}")
    assert missing == []


def test_the_changelog_has_room_for_what_is_not_released() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## \[Unreleased\]$", text, re.MULTILINE)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", text, re.MULTILINE)
    assert not released or released[0] == version


def test_every_decision_is_in_the_index_and_has_its_parts() -> None:
    folder = ROOT / "docs/understand/adr"
    index = (folder / "README.md").read_text(encoding="utf-8")
    pages = [path for path in sorted(folder.glob("*.md")) if path.name not in ("README.md", "retired.md")]
    found = []
    for path in pages:
        _, *sections = re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        for section in sections:
            heading = re.match(r'<a id="(\d{4})"></a>(\d{4}): \S.* \(\d{4}-\d\d-\d\d\)\n\n', section)
            assert heading and heading[1] == heading[2], section.partition("\n")[0]
            number = heading[1]
            found.append(number)
            assert f"[{number}]({path.name}#" in index
            parts = re.findall(r"^\*\*(\w+)\.\*\*", section, re.MULTILINE)
            assert parts in ([], ["Context", "Decision", "Consequences"]), number  # in short if nobody questions it
    assert found and len(found) == len(set(found)), "branches take numbers apart, so some may be missing"


def test_the_licence_is_the_declared_one() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["license"] == "Apache-2.0"


@pytest.mark.parametrize("project", [ROOT, *sorted((ROOT / "examples").iterdir())], ids=lambda path: path.name)
def test_every_project_is_sound_and_each_detector_has_its_runbook_and_cases(project: Path) -> None:
    catalog = read_catalog(project)
    assert catalog.broken == {}
    assert faults_of_cases(catalog.detectors.values()) == []
    runbooks = {name: spec.runbook for name, spec in catalog.detectors.items() if "://" not in spec.runbook}
    assert [name for name, runbook in runbooks.items() if not (project / runbook).is_file()] == []


def test_the_files_of_the_tutorials_are_good(tmp_path: Path) -> None:
    """Each page goes on from the one before."""
    for page in TUTORIALS:
        name = None
        for named, block in TUTORIAL_PART.findall(page.read_text(encoding="utf-8")):
            name = named or name
            if block:
                assert name is not None
                (tmp_path / name).parent.mkdir(exist_ok=True)
                (tmp_path / name).write_text(block, encoding="utf-8")
    catalog = read_catalog(tmp_path)
    assert catalog.broken == {}
    assert catalog.detector("server_errors").levels.lowest == 20
    assert faults_of_cases(catalog.detectors.values()) == []
    assert (catalog.flow("failures").to,) == catalog.view("route_figures").sources == ("failures",)


def test_the_detector_on_the_first_page_is_a_detector(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    assert first
    assert readme[: first.start()].count("\n") < 10, "it stands on the first screen"
    shown = tmp_path / "failed_logins.py"
    shown.write_text(first[1], encoding="utf-8")
    spec, real = read_spec(shown), read_spec(ROOT / "detectors" / "failed_logins.py")
    for key in ("sources", "entity", "window", "levels"):
        assert getattr(spec, key) == getattr(real, key)
