"""Packages of a project: what is locked and installed, and what is said when a lock does not fit."""

from pathlib import Path

import pytest

from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.setup import project_packages, python_env
from tocsin.setup.paths import Paths
from tocsin.setup.process import Command

OURS = """numpy==2.4.6 ; python_full_version < '3.12' \\
    --hash=sha256:00
    # via
    #   -r python.in
    #   pandas
pandas==2.3.3 \\
    --hash=sha256:00
    # via
    #   -r python.in
    #   great-expectations
"""
CLASH = """locking of requirements.in failed (exit code 1):
error: No solution found when resolving dependencies for split (markers: python_full_version >= '3.12')
  cause: Because all versions of oldlike depend on pandas<2 and pandas==2.3.3, we can conclude that all versions of
         oldlike cannot be used.
         And because you require oldlike, we can conclude that your requirements are unsatisfiable.

hint: While the active Python version is 3.11, the resolution failed for other Python versions.
To resume: make setup"""


class Uv:
    """Stands in for uv, which writes a lock that pins what is asked for to `version`."""

    def __init__(self) -> None:
        self.version, self.fails = "1.0", ""

    def __call__(self, paths: Paths, arguments: Command, what: str, folder: Path | None = None) -> None:
        if self.fails:
            raise TransientError(self.fails)
        *_, asked, _, target = arguments
        pins = "".join(f"{name}=={self.version}\n" for name in Path(asked).read_text().split())
        Path(target).write_text(f"{pins}    # via -c {paths.locks / 'python.txt'}\n")
        Path(target).chmod(0o600)


@pytest.fixture
def uv(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> Uv:
    (paths.locks / "python.txt").write_text(OURS)
    (paths.root / "requirements.in").write_text("tiny\n")
    (paths.root / "environments").mkdir()
    (paths.root / "environments" / "requirements.in").write_text("torch\n")
    uv = Uv()
    monkeypatch.setattr(python_env, "run_uv", uv)
    return uv


def test_each_file_is_locked_beside_itself_and_again_only_when_it_changes(paths: Paths, uv: Uv) -> None:
    locks = [paths.root / "requirements.txt", paths.root / "environments" / "requirements.txt"]
    assert project_packages.lock(paths, paths.root) == locks
    assert "tiny==1.0\n    # via -c Tocsin\n" in locks[0].read_text()
    assert locks[0].stat().st_mode == (paths.root / "requirements.in").stat().st_mode
    assert project_packages.lock(paths, paths.root) == []
    (paths.root / "requirements.in").write_text("tiny\nmore\n")
    assert project_packages.lock(paths, paths.root) == locks[:1]
    assert project_packages.faults_of(paths, project_packages.asked_for(paths.root).values()) == []


BAD = {
    "missing": "requirements.in: has no requirements.txt; run: tocsin packages",
    "older": "requirements.txt: is older than requirements.in; run: tocsin packages",
    "of another Tocsin": "requirements.txt: pandas: locks pandas to 2.2.0 here, 2.3.3 for Tocsin; run: tocsin packages",
}


@pytest.mark.parametrize("state", BAD)
def test_a_lock_that_does_not_fit_is_refused_and_what_mends_it_is_installed(
    paths: Paths, uv: Uv, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    project_packages.lock(paths, paths.root)
    lock = paths.root / "requirements.txt"
    if state == "missing":
        lock.unlink()
    elif state == "older":
        (paths.root / "requirements.in").write_text("tiny\nmore\n")
    else:
        lock.write_text(lock.read_text() + "pandas==2.2.0\n")
    installed: list[object] = []
    monkeypatch.setattr(python_env, "install", lambda _, project=(), **__: installed.append(project))
    with pytest.raises(ConfigError) as caught:
        project_packages.install(paths)
    assert str(caught.value).startswith(f"{paths.root}/{BAD[state]}")
    assert installed == [()]


def test_a_clash_names_who_asks_for_what(paths: Paths, uv: Uv) -> None:
    uv.fails = CLASH
    with pytest.raises(ConfigError) as caught:
        project_packages.lock(paths, paths.root)
    told = str(caught.value)
    assert told.startswith(f"{paths.root}/requirements.in: cannot be fulfilled: Because all versions of oldlike depend")
    assert told.endswith("are unsatisfiable. Tocsin has pandas 2.3.3 for PySpark and itself, great-expectations")
    uv.fails = "locking failed: no network"
    with pytest.raises(TransientError):
        project_packages.lock(paths, paths.root)


def test_nothing_to_lock_is_an_error_that_names_the_file(paths: Paths) -> None:
    with pytest.raises(ConfigError, match=r"requirements\.in: is missing: name there the packages"):
        project_packages.lock(paths, paths.root)


def test_what_is_installed_is_what_is_locked(paths: Paths, uv: Uv, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("build.txt", "uv.txt", "dev.txt", "python.in"):
        (paths.locks / name).touch()
    (paths.root / "pyproject.toml").write_text("[project]\nname = 'tocsin'\n[build-system]\nrequires = []\n")
    project_packages.lock(paths, paths.root)
    synced: list[tuple[str, list[str]]] = []

    def run_uv(_: Paths, arguments: Command, *__: object) -> None:
        words = [str(word) for word in arguments]
        if "sync" in words:
            locks = [Path(word).name for word in words[words.index("--require-hashes") + 1 :]]
            synced.append((words[words.index("--python") + 1], locks))
        elif "venv" in words:
            Path(words[-1], "bin").mkdir()
            Path(words[-1], "bin", "python").touch()

    monkeypatch.setattr(python_env, "run_uv", run_uv)
    with pytest.raises(
        ConfigError, match=r"environments/requirements\.txt: is not installed here; run: tocsin packages"
    ):
        project_packages.python_of(paths, paths.root, "requirements")
    assert project_packages.install(paths)
    torch = paths.home / "environments" / "requirements" / "bin" / "python"
    assert synced == [
        (str(paths.venv / "bin" / "python"), ["python.txt", "dev.txt", "requirements.txt"]),
        (str(torch), ["python.txt", "requirements.txt"]),
    ]
    assert not project_packages.install(paths)
    (paths.root / "requirements.in").write_text("tiny\nmore\n")  # which is no fault of the environment of that name
    assert project_packages.python_of(paths, paths.root, "requirements") == torch
    (paths.root / "requirements.in").write_text("tiny\n")
    (paths.locks / "python.txt").write_text(OURS + "# another lock of Tocsin\n")
    assert project_packages.install(paths)
    assert synced[2:] == synced[:2]  # so a lock of Tocsin removes nothing of the project's
    with pytest.raises(ConfigError, match=r"other\.in: is missing: it names the packages"):
        project_packages.python_of(paths, paths.root, "other")
