"""Let Spark read and write an object store: Hadoop's `s3a` file system, its archives and its options."""

from __future__ import annotations

import os
from pathlib import Path

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.setting_blocks import S3, StorageSettings
from tocsin.setup.paths import here

CREDENTIALS = "AWS_SHARED_CREDENTIALS_FILE"
"""The variable by which a JVM is told of the file of `storage.s3_credentials_file`."""

VARIABLES = ("SPARK_DIST_CLASSPATH", CREDENTIALS, "AWS_PROFILE", "AWS_CONFIG_FILE")
"""All that `prepare_s3a` may set."""

_PROVIDERS = "software.amazon.awssdk.auth.credentials"
# On each machine what its JVM has for such files: of the driver, its scratch. Scratch exists on that machine alone.
_BUFFERS_ELSEWHERE = "${java.io.tmpdir}/s3a-${user.name}"


def archives_of_s3a(setting: str) -> list[str]:
    """List the archives of s3a. ConfigError if they are not installed, and `setting` needs them."""
    folder = here().jars("s3")
    archives = sorted(str(jar) for jar in folder.glob("*.jar"))
    if not archives:
        raise ConfigError.one(folder, "holds no archives of s3a; run: make setup-s3", key=setting)
    return archives


def prepare_s3a(
    storage: StorageSettings, uri: str | None, scratch: Path, *, has_executors: bool = False
) -> dict[str, str]:
    """Put the archives of s3a on the class path of the JVM that starts next; returns the options of its session.

    Nothing happens, and nothing is returned, where `uri` lies on a disk. What is to be sent waits in `scratch`. With
    executors elsewhere these get the archives and the path of the file of credentials, too. Raises a ConfigError if the
    archives are not installed.
    """
    if uri is None or not uri.startswith(S3):
        return {}
    archives = archives_of_s3a(storage.setting_of(uri))
    # Behind Spark's own archives: in front of them, as extraClassPath is, the AppCDS archive would not fit any more.
    os.environ["SPARK_DIST_CLASSPATH"] = os.pathsep.join(archives)
    # Not as options: those stand in the command line of the JVM, which everybody on the machine can read.
    os.environ |= _login(storage)
    options = _options(storage) | {"buffer.dir": str(scratch / "s3a")}
    options = {f"spark.hadoop.fs.s3a.{key}": value for key, value in options.items()}
    return options | _for_executors(storage, archives) if has_executors else options


def _for_executors(storage: StorageSettings, archives: list[str]) -> dict[str, str]:
    options = {"spark.jars": ",".join(archives), "spark.hadoop.fs.s3a.buffer.dir": _BUFFERS_ELSEWHERE}
    return options | {f"spark.executorEnv.{name}": value for name, value in _login(storage).items()}


def _login(storage: StorageSettings) -> dict[str, str]:
    """Give the variables by which a JVM takes the keys that `read_credentials` takes; nothing without a file.

    So a profile that somebody has chosen, or a role of his in `~/.aws/config`, changes nothing.
    """
    if storage.s3_credentials_file is None:
        return {}
    file = str(storage.s3_credentials_file.absolute())
    return {CREDENTIALS: file, "AWS_PROFILE": "default", "AWS_CONFIG_FILE": os.devnull}


def _options(storage: StorageSettings) -> dict[str, str]:
    # The chain looks for keys and roles in the environment before it reads a file.
    provider = "DefaultCredentialsProvider" if storage.s3_credentials_file is None else "ProfileCredentialsProvider"
    options = {
        "aws.credentials.provider": f"{_PROVIDERS}.{provider}",
        "endpoint.region": storage.s3_region,
        # Four times 15 s: what does not answer fails after a minute, and the query begins anew; the defaults try for
        # many. The SDK would try each of the four several times again, with no wait that is worth one.
        "connection.establish.timeout": "15s",
        "connection.timeout": "15s",
        "attempts.maximum": "0",
        "retry.limit": "3",
        "retry.interval": "500ms",
    }
    if storage.s3_endpoint is not None:
        options |= {"endpoint": storage.s3_endpoint, "path.style.access": "true"}
    return options
