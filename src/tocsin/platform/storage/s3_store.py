"""An object store that speaks S3, through pyarrow."""

from __future__ import annotations

import configparser
import contextlib
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.setting_blocks import S3, StorageSettings
from tocsin.setup.paths import here

_CONNECT_SECONDS, _ANSWER_SECONDS, _ATTEMPTS = 3, 10, 3
# In the words of the client, which gives no code.
_REFUSALS = {
    "NO_SUCH_BUCKET": "the bucket does not exist; create it, or name another",
    "INVALID_ACCESS_KEY_ID": "the store does not know the access key; see storage.s3_credentials_file",
    "SIGNATURE_DOES_NOT_MATCH": "the secret key is wrong; see storage.s3_credentials_file",
    "ACCESS_DENIED": "the store denies access; the key needs the rights to list, read, write and delete there",
    "HTTP status 403": "the store denies access; the key needs the rights to list, read, write and delete there",
    "HTTP status 301": "the bucket is in another region; see storage.s3_region",
}


@dataclass(frozen=True)
class S3Store:
    """A store as `pyarrow.fs` sees it: objects under keys, `bucket/prefix/name`, replaced whole or not at all.

    `files` is a `pyarrow.fs.FileSystem`; use it in a block of `answering`.
    """

    files: Any
    storage: StorageSettings

    @contextlib.contextmanager
    def answering(self, key: str) -> Iterator[None]:
        """Turn errors in the block into a ConfigError if the store refused, a TransientError if it did not answer."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            uri, text = f"{S3}{key}", str(error)
            for words, what in _REFUSALS.items():
                if words in text:
                    raise ConfigError.one(uri, what, key=self.storage.setting_of(uri)) from error
            raise TransientError(f"{uri}: the object store did not answer: {text[:300]}") from error


@functools.cache
def s3_store(storage: StorageSettings) -> S3Store:
    """Open the store, once in each process; it connects on first use. ConfigError if the credentials cannot be read."""
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

    scheme, _, address = (storage.s3_endpoint or "").partition("://")
    options = {"endpoint_override": address, "scheme": scheme} if address else {}
    files = S3FileSystem(
        region=storage.s3_region,
        connect_timeout=_CONNECT_SECONDS,
        request_timeout=_ANSWER_SECONDS,
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
        allow_delayed_open=True,  # a note is one request: it is there whole, or not
        **options,
        **read_credentials(storage.s3_credentials_file),
    )
    return S3Store(files, storage)


def file_io_of(storage: StorageSettings) -> dict[str, str]:
    """Give pyiceberg's properties for the store; a catalogue does not keep them. ConfigError as `read_credentials`."""
    names = {"access_key": "access-key-id", "secret_key": "secret-access-key", "session_token": "session-token"}
    keys = {names[name]: value for name, value in read_credentials(storage.s3_credentials_file).items()}
    options = {"region": storage.s3_region, "connect-timeout": str(_CONNECT_SECONDS)} | keys
    options["request-timeout"] = str(_ANSWER_SECONDS)
    if storage.s3_endpoint is not None:
        options["endpoint"] = storage.s3_endpoint
    return {f"s3.{name}": value for name, value in options.items()}


def read_credentials(path: Path | None) -> dict[str, str]:
    """Read the default profile of a file like `~/.aws/credentials`, as pyarrow takes it. ConfigError if that fails."""
    if path is None:
        return {}
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
        profile = parser["default"]
        found = {"access_key": profile["aws_access_key_id"], "secret_key": profile["aws_secret_access_key"]}
    except OSError as error:
        raise ConfigError.one(path, f"cannot be read: {error.strerror}", key="storage.s3_credentials_file") from error
    except (configparser.Error, KeyError, UnicodeDecodeError) as error:
        what = "must hold [default] with aws_access_key_id and aws_secret_access_key"
        raise ConfigError.one(path, what, key="storage.s3_credentials_file") from error
    token = profile.get("aws_session_token")
    return found if token is None else found | {"session_token": token}


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
