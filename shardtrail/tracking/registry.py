"""Model versions in MLflow's registry. Versions carry plain files only; nothing of them is unpickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardtrail.errors import ConfigError
from shardtrail.tracking.runs import MODEL_FOLDER
from shardtrail.tracking.store import Store

CANDIDATE = "candidate"
"""Alias of the version registered last."""
VERIFIED_TAG = "shardtrail.verified"
"""Set once a version was loaded back and gave finite outputs; a version without it does not count."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a registered model.

    Attributes:
        source: URI of its artifacts: the model's folder of its run.
    """

    name: str
    number: int
    run_id: str
    source: str
    tags: Mapping[str, str]

    @property
    def verified(self) -> bool:
        return self.tags.get(VERIFIED_TAG) == "true"


def find_version(store: Store, name: str, tags: Mapping[str, str]) -> Version | None:
    """The version of ``name`` with all these tags; a verified one before others, then the earliest."""
    where = [f"name = '{name}'", *(f"tags.`{tag}` = '{value}'" for tag, value in tags.items())]
    found = _search(store, " AND ".join(where))
    return min(found, key=lambda version: (not version.verified, version.number), default=None)


def create_version(store: Store, name: str, run_id: str, tags: Mapping[str, str]) -> Version:
    """A new version of the model of a run, linked to that run. It has no alias yet and is not verified."""
    from mlflow.exceptions import MlflowException

    try:
        store.client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    source = f"{store.client.get_run(run_id).info.artifact_uri}/{MODEL_FOLDER}"
    return _version(store.client.create_model_version(name, source, run_id=run_id, tags=dict(tags)))


def accept_version(store: Store, version: Version) -> None:
    """Make a version that was loaded back the candidate."""
    store.client.set_registered_model_alias(version.name, CANDIDATE, str(version.number))
    store.client.set_model_version_tag(version.name, str(version.number), VERIFIED_TAG, "true")


def reject_version(store: Store, version: Version) -> None:
    """Remove a version that could not be loaded back."""
    store.client.delete_model_version(version.name, str(version.number))


def resolve_version(store: Store, name: str, number: int | None = None) -> Version:
    """The version that ``name`` (the latest), ``name/3`` or ``name@alias`` means.

    Raises:
        ConfigError: there is no such model, version or alias; the text names those there are.
    """
    import difflib

    from mlflow.exceptions import MlflowException

    name, at, alias = name.partition("@")
    name, slash, text = name.partition("/")
    if slash and not text.isdigit():
        raise ConfigError(f"model {name}/{text}: write a version as {name}/3 or an alias as {name}@{CANDIDATE}")
    versions = _search(store, f"name = '{name}'") if "'" not in name else []
    if not versions:
        known = sorted({version.name for version in all_versions(store)})
        near = difflib.get_close_matches(name, known, 3) or known[:10]
        raise ConfigError(f"no model {name!r} in the registry of {store.address}; there is: {', '.join(near) or '-'}")
    if at:
        try:
            return _version(store.client.get_model_version_by_alias(name, alias))
        except MlflowException:
            aliases = ", ".join(sorted(store.client.get_registered_model(name).aliases)) or "none"
            raise ConfigError(f"model {name} has no alias {alias!r}; it has: {aliases}") from None
    wanted = int(text) if slash else number
    for version in versions:
        if wanted in (None, version.number):
            return version
    numbers = ", ".join(str(version.number) for version in versions)
    raise ConfigError(f"model {name} has no version {wanted}; it has: {numbers}")


def all_versions(store: Store) -> list[Version]:
    """Every version of every model, latest first within each name."""
    return _search(store, "")


def fetch_model(store: Store, version: Version, into: Path) -> Path:
    """A version's folder as local files."""
    return store.fetch_uri(version.source, into)


def _search(store: Store, where: str) -> list[Version]:
    found: list[Version] = []
    token = None
    while True:
        page = store.client.search_model_versions(where, max_results=1000, page_token=token)
        found += [_version(entry) for entry in page]
        token = page.token
        if not token:
            return sorted(found, key=lambda version: (version.name, -version.number))


def _version(entry: Any) -> Version:
    return Version(entry.name, int(entry.version), entry.run_id or "", entry.source, dict(entry.tags))
