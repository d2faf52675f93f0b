"""An object store that speaks S3, through pyarrow."""

from __future__ import annotations

import configparser
import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.setting_blocks import S3, StorageSettings

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
