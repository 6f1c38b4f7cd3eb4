"""The connection to MLflow: address, quietness, errors, experiments, artifacts.

with open_store(job.config.tracking.uri, job.folder.root) as store:
    store.client.search_experiments()
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from shardtrail.errors import ConfigError, StoreUnavailable

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_DATABASES = ("postgresql", "mysql", "mssql")
_ENVIRONMENT = {
    # MLflow reports usage to its makers unless told not to; nothing may leave for another host.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # Seven retries are minutes of silence before a wrong address is reported; tasks retry by themselves.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
}

_USERINFO = re.compile(r"(?<=://)[^/\s'\"]+@")
_QUERY = re.compile(r"(://[^\s?'\"]+)\?[^\s'\"]+")


@dataclass(frozen=True, slots=True)
class Store:
    """An open connection.

    Attributes:
        address: of the server or database, without credentials; may be shown and logged.
        client: MLflow's.
        artifacts: URI under which new experiments keep artifacts; None: the server decides.
    """

    address: str
    client: MlflowClient
    artifacts: str | None

    def experiment(self, name: str) -> str:
        """Id of the experiment ``name``, which is made where it does not exist.

        Raises:
            ConfigError: it was deleted; MLflow keeps the name until it is restored.
        """
        from mlflow.exceptions import MlflowException

        found = self.client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self.client.create_experiment(name, artifact_location=self.artifacts))
            except MlflowException:
                # Another process may have made it since; anything else is an error.
                found = self.client.get_experiment_by_name(name)
                if found is None:
                    raise
        if found.lifecycle_stage != "active":
            raise ConfigError(
                f"tracking.experiment: {name!r} was deleted on {self.address}; restore it "
                f"(mlflow experiments restore -x {found.experiment_id}) or choose another name"
            )
        return str(found.experiment_id)

    def runs(self, experiments: list[str], where: str, order: str = "attributes.start_time DESC") -> list[Any]:
        """All active runs that fulfil ``where``, page by page; an empty list of experiments holds none."""
        found: list[Any] = []
        token = None
        while experiments:
            page = self.client.search_runs(experiments, where, max_results=1000, order_by=[order], page_token=token)
            found += page
            token = page.token
            if not token:
                break
        return found

    def fetch(self, run_id: str, path: str, into: Path) -> Path:
        """A run's artifact as a local file or folder: where it lies if that is on this machine, else downloaded.

        Raises:
            StoreUnavailable: the artifact is not there.
        """
        return self.fetch_uri(f"{self.client.get_run(run_id).info.artifact_uri}/{path}", into)

    def fetch_uri(self, uri: str, into: Path) -> Path:
        """Like ``fetch``, by the artifact's URI."""
        local = local_path(uri)
        if local is not None:
            if not local.exists():
                raise StoreUnavailable(f"{local} is gone, though {self.address} names it; restore it from a backup")
            return local
        from mlflow.artifacts import download_artifacts

        into.mkdir(parents=True, exist_ok=True)
        return Path(download_artifacts(artifact_uri=uri, dst_path=str(into), tracking_uri=self.client.tracking_uri))


@contextlib.contextmanager
def open_store(
    uri: str, root: Path, *, existing: bool = False, say: Callable[[str], None] | None = None
) -> Iterator[Store]:
    """Connect to a tracking server or database.

    Args:
        uri: ``sqlite:///FILE`` (relative to ``root``), another database, or a server's address.
        root: where relative files start and, with a bare database, artifacts lie (``mlartifacts``).
        existing: whether an absent SQLite file is an error rather than made.
        say: told once when a new SQLite file is made, which takes some seconds.

    Raises:
        ConfigError: the address cannot be used.
        StoreUnavailable: the server or database does not answer, or refuses; credentials are blotted out.
    """
    address = resolve_uri(uri, root)
    file = _sqlite_file(address)
    if file is not None and not file.exists():
        if existing:
            raise ConfigError(f"no tracking database {file}; give the right one: --tracking-uri sqlite:///PATH")
        file.parent.mkdir(parents=True, exist_ok=True)
        if say:
            say(f"tracking: making {file.name} (once, some seconds)")
    client = _client(address)
    from mlflow.exceptions import MlflowException
    from requests.exceptions import RequestException

    local = (root if file is None else file.parent) / "mlartifacts"
    artifacts = None if address.startswith("http") else local.resolve().as_uri()
    try:
        yield Store(redact(address), client, artifacts)
    except (MlflowException, RequestException) as error:
        raise StoreUnavailable(
            f"tracking.uri {redact(address)}: {redact(str(error))}\nIs the server up, and its address right? "
            "What is on disk is safe; run the command again."
        ) from None


def resolve_uri(uri: str, root: Path) -> str:
    """``uri`` with a relative SQLite file made absolute against ``root``.

    Raises:
        ConfigError: neither a database nor a server.
    """
    scheme = urlsplit(uri).scheme.partition("+")[0]
    if scheme in ("http", "https", *_DATABASES):
        return uri.rstrip("/")
    if uri.startswith("sqlite:///") and len(uri) > len("sqlite:///"):
        return f"sqlite:///{(root / uri.removeprefix('sqlite:///')).resolve()}"
    raise ConfigError(
        f"tracking.uri: use sqlite:///mlflow.db, a server such as http://localhost:5000, or postgresql://… "
        f"(got {redact(uri)!r})"
    )


def store_exists(uri: str, root: Path) -> bool:
    """Whether there is something to connect to; of a server only its own answer tells."""
    file = _sqlite_file(resolve_uri(uri, root))
    return file is None or file.exists()


def redact(text: str) -> str:
    """``text`` with user names, passwords and query strings of every address in it blotted out."""
    return _QUERY.sub(r"\1?***", _USERINFO.sub("***@", text))


def local_path(uri: str) -> Path | None:
    """The path that an artifact URI names on this machine, or None."""
    if uri.startswith("file://"):
        return Path(unquote(urlsplit(uri).path))
    return Path(uri) if uri.startswith("/") else None


def _sqlite_file(address: str) -> Path | None:
    return Path(address.removeprefix("sqlite:///")) if address.startswith("sqlite:///") else None


def _client(address: str) -> MlflowClient:
    parts = urlsplit(address)
    if parts.scheme in ("http", "https") and "@" in parts.netloc:
        # MLflow prints whole addresses in its errors; through its own variables the credentials stay apart.
        os.environ["MLFLOW_TRACKING_USERNAME"] = unquote(parts.username or "")
        os.environ["MLFLOW_TRACKING_PASSWORD"] = unquote(parts.password or "")
        address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=address, registry_uri=address)
