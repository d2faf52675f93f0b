"""Images: ours by its Dockerfile; stand-ins for the official ones, made of Debian's packages and our locks."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.containers.engine import Engine
from tests.containers.learned_project import declare
from tests.rig.go_programs import build
from tocsin.setup.paths import here

FOLDER = Path(__file__).parent / "images"
ROOT = here().root
_SUITE = "bookworm"
_PACKAGES = (
    *("ca-certificates", "python3", "python3-venv", "wget", "openjdk-17-jre-headless", "postgresql-15"),
    "prometheus",
)
_BASE = "tocsin-base"
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BUILD_SECONDS = 1800


def provide(engine: Engine) -> None:
    """Make the images that are missing or out of date; the base takes minutes once, ours when its files change."""
    base = _base(engine)
    compose = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    official = {short: name for name, short in re.findall(r"image: ((?:\w+/)?(\w+):\S+)", compose)}
    official["python"] = re.findall(r"^FROM (python:\S+)", dockerfile, re.MULTILINE)[0]
    context = engine.home / "context"
    for short in ("python", "kafka", "postgres", "prometheus", "versitygw"):
        _stand_in(engine, context, short, official[short], base)
    _ours(engine, official["tocsin"])


def _base(engine: Engine) -> str:
    """A Debian with all that the stand-ins run; named by what is in it."""
    digest = hashlib.sha256(" ".join((_SUITE, *_PACKAGES)).encode()).hexdigest()[:12]
    name, file = f"{_BASE}:{digest}", engine.home / "base.tar"
    if not engine.has_image(name):
        print(f"a base of Debian {_SUITE}: some minutes, once", flush=True)
        packages = f"--include={','.join(_PACKAGES)}"
        subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", packages, _SUITE, str(file)], check=True)
        engine("import", "--change", f"ENV {_PATH}", file, name, seconds=_BUILD_SECONDS)
        file.unlink()
    return name


def _stand_in(engine: Engine, context: Path, short: str, name: str, base: str) -> None:
    shutil.rmtree(context, ignore_errors=True)
    shutil.copytree(FOLDER, context / "images")
    if short == "kafka":
        shutil.copytree(here().jars("broker"), context / "jars" / "broker")
    if short == "versitygw":
        shutil.copy(_s3_server(engine.home / "go", name.partition(":")[2]), context)
    _build(engine, name, context, FOLDER / f"{short}.Containerfile", "--build-arg", f"BASE={base}")


def _s3_server(folder: Path, version: str) -> Path:
    """The program that the official image holds, made once from its module, which Go checks against its sums."""
    build(folder / version, "github.com/versity/versitygw", version.removeprefix("v"), ["cmd/versitygw"])
    return folder / version / "versitygw"


def _ours(engine: Engine, name: str) -> None:
    """Build with the Dockerfile as it is; the build sees this machine's certificates, settings of pip, and
    uv's cache, which change no byte of what is installed: the locks have its hashes."""
    print(f"our image {name}: some minutes when something has changed", flush=True)
    context = _checkout(engine.home / "checkout")
    cache = Path(subprocess.check_output([here().uv / "bin" / "uv", "cache", "dir"], text=True).strip())
    seen = {Path("/etc/ssl/certs"): "/etc/ssl/certs:ro", Path("/etc/pip.conf"): "/etc/pip.conf:ro"}
    seen |= {cache: "/var/cache/uv"}
    words = [word for path, place in seen.items() if path.exists() for word in ("--volume", f"{path}:{place}")]
    _build(engine, name, context, context / "Dockerfile", "--network", "host", *words)


def _checkout(place: Path) -> Path:
    """Copy what the image is made of, with the files of a project that has packages, as its owners lock them."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8")
    for name in (".dockerignore", "Dockerfile", *re.findall(r"^!(.+)", ignored, re.MULTILINE)):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        elif (ROOT / name).exists():
            shutil.copy2(ROOT / name, place / name)
    declare(place)
    environment = os.environ | {"TOCSIN_PROJECT": str(place)}
    subprocess.run([sys.executable, "-m", "tocsin.cli", "packages", "--lock-only"], env=environment, check=True)
    return place


def _build(engine: Engine, name: str, context: Path, file: Path, *more: str) -> None:
    engine("build", "--quiet", "--file", file, "--tag", name, *more, context, seconds=_BUILD_SECONDS)
