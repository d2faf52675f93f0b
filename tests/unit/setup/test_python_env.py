from collections.abc import Mapping
from pathlib import Path

import pytest

from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.setup import python_env
from tocsin.setup.paths import Paths
from tocsin.setup.process import Command

LOCKS = ("python.txt", "dev.txt", "airflow.txt", "build.txt", "uv.txt", "bench.txt", "python.in")
PROJECT = '[project]\nname = "tocsin"\n[build-system]\nrequires = ["setuptools==1"]\n'


class Tools:
    """Stands in for pip and uv: makes the files that they make, or breaks off at one step."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.breaks_at = self.pip_says = ""
        self.env: Mapping[str, str] | None = None

    def run(self, command: Command, what: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
        words = [str(word) for word in command]
        if "list" in words:
            return self.pip_says
        self.commands.append(words)
        self.env = env
        if self.breaks_at and self.breaks_at in words:
            raise TransientError(what)
        if "--allow-existing" in words:
            python = Path(words[-1], "bin", "python")
            python.parent.mkdir()
            python.touch()
        return ""

    def verbs(self) -> list[str]:
        known = ("sync", "--editable", "-m", "venv")
        verbs = [next(verb for verb in known if verb in words) for words in self.commands]
        self.commands.clear()
        return ["uv" if verb == "-m" else verb for verb in verbs]


@pytest.fixture
def tools(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> Tools:
    for name in LOCKS:
        (paths.locks / name).write_text(name)
    (paths.root / "pyproject.toml").write_text(PROJECT)
    for name in (*python_env._SAME_IN_UV.values(), "UV_INDEX_URL", "UV_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(paths.root / "config"))
    python_env._told_by_pip.cache_clear()
    tools = Tools()
    monkeypatch.setattr(python_env, "run", tools.run)
    return tools


def test_a_second_run_does_nothing_and_settings_of_the_tools_are_no_change(paths: Paths, tools: Tools) -> None:
    assert python_env.install(paths)
    assert tools.verbs() == ["uv", "uv", "venv", "sync", "--editable"]
    (paths.root / "pyproject.toml").write_text(PROJECT + "[tool.ruff]\nline-length = 1\n")
    assert not python_env.install(paths)
    assert tools.verbs() == []


@pytest.mark.parametrize("name", ["python.txt", "dev.txt", "build.txt", "python.in"])
def test_a_changed_lock_is_installed_into_the_same_environment(paths: Paths, tools: Tools, name: str) -> None:
    python_env.install(paths)
    tools.verbs()
    (paths.locks / name).write_text("changed")
    assert python_env.install(paths)
    assert tools.verbs() == ["sync", "--editable"]


@pytest.mark.parametrize("step", ["--allow-existing", "sync", "--editable"])
def test_a_broken_off_environment_is_made_anew(paths: Paths, tools: Tools, step: str) -> None:
    tools.breaks_at = step
    with pytest.raises(TransientError):
        python_env.install(paths)
    leftover = paths.venv / "half"
    leftover.touch()
    tools.verbs()
    tools.breaks_at = ""
    assert python_env.install(paths)
    assert tools.verbs() == ["venv", "sync", "--editable"], "uv itself was complete"
    assert not leftover.exists()
    assert not python_env.install(paths)


def test_an_update_that_is_broken_off_is_made_anew(paths: Paths, tools: Tools) -> None:
    python_env.install(paths)
    (paths.locks / "python.txt").write_text("changed")
    tools.breaks_at = "sync"
    with pytest.raises(TransientError):
        python_env.install(paths)
    tools.breaks_at = ""
    tools.verbs()
    assert python_env.install(paths)
    assert tools.verbs() == ["venv", "sync", "--editable"]


def test_an_environment_of_another_python_is_made_anew(
    paths: Paths, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    python_env.install(paths)
    tools.verbs()
    monkeypatch.setattr("sys.version", "3.99.0 (main)")
    assert python_env.install(paths)
    assert tools.verbs() == ["uv", "uv", "venv", "sync", "--editable"]


def test_an_environment_of_somebody_else_is_left_alone(paths: Paths, tools: Tools) -> None:
    paths.venv.mkdir()
    (paths.venv / "pyvenv.cfg").touch()
    with pytest.raises(ConfigError, match=r"\.venv: was not made by this set-up"):
        python_env.install(paths)
    assert (paths.venv / "pyvenv.cfg").exists()


def test_an_environment_whose_python_is_gone_is_made_anew(paths: Paths, tools: Tools) -> None:
    python_env.install(paths)
    (paths.venv / "bin" / "python").unlink()
    tools.verbs()
    assert python_env.install(paths)
    assert tools.verbs() == ["venv", "sync", "--editable"]


def test_a_python_without_venv_names_the_remedy(paths: Paths, tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="apt install python3-venv"):
        python_env.install_uv(paths)


def test_uv_is_told_what_pip_is_told(paths: Paths, tools: Tools) -> None:
    tools.pip_says = (
        "global.index-url='https://files.example/simple'\nglobal.timeout='60'\nfreeze.proxy='x'\n"
        "install.index-url='https://install.example/simple'\n:env:.proxy='http://proxy.example:3128'\n"
    )
    python_env.install(paths)
    assert tools.env == {"UV_DEFAULT_INDEX": "https://install.example/simple", "ALL_PROXY": "http://proxy.example:3128"}


def test_uv_takes_several_indexes_and_folders_of_pip_that_are_there(paths: Paths, tools: Tools) -> None:
    tools.pip_says = (
        f"global.extra-index-url='\\nhttps://a.example\\nhttps://b.example'\n"
        f"global.find-links='{paths.root} {paths.root}/absent https://c.example'\n"
    )
    python_env.install(paths)
    assert tools.env == {
        "UV_INDEX": "https://a.example https://b.example",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": f"{paths.root},https://c.example",
    }


@pytest.mark.parametrize("name", ["UV_DEFAULT_INDEX", "UV_INDEX_URL"])
def test_what_uv_is_told_itself_goes_first(
    paths: Paths, tools: Tools, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "https://uv.example/simple")
    tools.pip_says = "global.index-url='https://pip.example/simple'\nglobal.cert='/ca.pem'\n"
    python_env.install(paths)
    assert tools.env == {"SSL_CERT_FILE": "/ca.pem"}


def test_with_a_file_for_uv_pip_is_not_asked(paths: Paths, tools: Tools) -> None:
    (paths.root / "config" / "uv").mkdir(parents=True)
    (paths.root / "config" / "uv" / "uv.toml").touch()
    tools.pip_says = "global.index-url='https://pip.example/simple'\n"
    python_env.install(paths)
    assert tools.env == {}


def test_an_image_has_no_tools_and_a_checkout_gets_them_afterwards(paths: Paths, tools: Tools) -> None:
    assert python_env.install(paths, with_tools=False)
    synced = next(words for words in tools.commands if "sync" in words)
    assert str(paths.locks / "python.txt") in synced
    assert str(paths.locks / "dev.txt") not in synced
    tools.verbs()
    assert python_env.install(paths)
    assert tools.verbs() == ["sync", "--editable"]


def test_everything_is_installed_with_hashes(paths: Paths, tools: Tools) -> None:
    python_env.install(paths)
    python_env.install_bench(paths)
    for words in tools.commands:
        if "sync" in words or ("-m" in words[:2] and "pip" in words):
            assert "--require-hashes" in words
        if "sync" in words or "--editable" in words:
            assert words[words.index("--build-constraints") + 1].endswith("build.txt")


def test_airflow_has_an_environment_of_its_own(paths: Paths, tools: Tools) -> None:
    python_env.install(paths)
    tools.verbs()
    assert python_env.install_airflow(paths)
    synced = next(words for words in tools.commands if "sync" in words)
    assert [Path(word).name for word in synced if word.endswith(".txt")] == ["build.txt", "airflow.txt"]
    assert synced[synced.index("--python") + 1] == str(paths.airflow_venv / "bin" / "python")
    assert tools.verbs() == ["venv", "sync", "--editable"]
    assert not python_env.install_airflow(paths)
    assert not python_env.install(paths)


def test_the_peers_have_an_environment_of_their_own(paths: Paths, tools: Tools) -> None:
    python_env.install(paths)
    tools.verbs()
    assert python_env.install_bench(paths)
    _, sync = tools.commands
    assert sync[-1].endswith("bench.txt")
    assert str(paths.bench / "venv") in sync[sync.index("--python") + 1]
    assert not python_env.install(paths)
