"""``params.yaml`` -> frozen models. Nothing else reads YAML or the environment.

config = load_config(Path("params.yaml"))
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from shardtrail.errors import ConfigError


class Params(BaseModel):
    """Base of all sections: frozen, no unknown keys, no infinity. Errors show no values but through ``ConfigError``."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)


class BigEarthNetParams(Params):
    """Options of the layout ``bigearthnet``."""

    sensors: Literal["auto", "s2", "s1s2"] = "auto"
    """``s2``: Sentinel-2 alone; ``s1s2``: pairs; ``auto``: pairs if the tree holds at least one."""
    classes: Literal[19, 43] = 19
    """Nomenclature of the labels."""
    splits: tuple[str, ...] = ()
    """Official split lists (``train.csv``, ``val.csv``, ``test.csv`` or v2's ``metadata.parquet``), relative to
    the working folder or to the source. A v2 table in the source is found by itself."""
    exclude: tuple[str, ...] = ()
    """Lists of patch names to leave out (seasonal snow, cloud and shadow), counted as excluded."""
    empty_labels: Literal["quarantine", "keep"] = "quarantine"
    """A patch none of whose labels is in the nomenclature: quarantined, or kept with no label."""


class DownloadParams(Params):
    """How an archive source is fetched."""

    checksum: str = Field("", pattern=r"^((md5|sha1|sha256|sha512):[0-9a-fA-F]+)?$")
    """The published checksum of the archive, such as ``md5:5a64e9ce…``; empty: not checked."""


class SelectParams(Params):
    """Which samples to use; the rest is counted as excluded."""

    share: float = Field(1.0, gt=0, le=1)
    """Share of all samples, drawn by a seeded hash of the sample id."""
    seed: int = 0
    classes: tuple[str, ...] = ()
    """Only samples with at least one of these labels."""
    countries: tuple[str, ...] = ()
    date_from: date | None = None
    """First day of acquisition, included."""
    date_to: date | None = None
    """Last day of acquisition, included."""


class SplitParams(Params):
    """How samples without an official split are drawn."""

    by: Literal["region", "sample"] = "region"
    """``region``: a tile goes to one split as a whole, so that neighbours do not leak."""
    train: float = Field(0.8, gt=0, le=1)
    validation: float = Field(0.1, ge=0, lt=1)
    test: float = Field(0.1, ge=0, lt=1)
    seed: int = 0

    @model_validator(mode="after")
    def _sum(self) -> SplitParams:
        total = self.train + self.validation + self.test
        if abs(total - 1) > 1e-9:
            raise ValueError(f"train + validation + test must be 1 (got {total:g})")
        return self


class ValidateParams(Params):
    """Checks of the raw samples."""

    max_bad_share: float | None = Field(None, ge=0, le=1)
    """Fail when a larger share of the samples is quarantined; none: never."""
    select: SelectParams = SelectParams()
    split: SplitParams = SplitParams()


class ShardParams(Params):
    """The plan: group -> order -> cut, and the records' encoding."""

    group: str = Field("none", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """No shard crosses a group: ``none``, ``region``, ``month``, ``grid`` (cells of longitude and latitude), or any
    manifest column."""
    grid_degrees: float = Field(1.0, ge=0.001, le=90)
    """Side of a cell of ``group: grid``, in degrees."""
    order: Literal["shuffled", "natural"] = "shuffled"
    """``shuffled``: by a seeded hash of the sample id; ``natural``: by acquisition, then id."""
    cut: Literal["stable", "exact"] = "stable"
    """``stable``: a new sample usually changes one shard; ``exact``: equal sizes."""
    target_samples: int | None = Field(None, ge=1)
    """Aimed records of a shard; excludes ``target_mib``."""
    target_mib: Annotated[float, Field(gt=0)] | None = None
    """Aimed size of a shard; 192 when neither target is given."""
    encoding: Literal["raw", "zlib", "int64"] = "raw"
    """``raw``: little-endian bytes a band; ``zlib``: compressed without loss, each band on its own; ``int64``: what
    BigEarthNet's own scripts write."""
    seed: int = 0

    @model_validator(mode="after")
    def _one_target(self) -> ShardParams:
        if self.target_samples is not None and self.target_mib is not None:
            raise ValueError(
                f"give target_samples or target_mib, not both (got {self.target_samples} and {self.target_mib:g})"
            )
        return self


class TrainParams(Params):
    """One training run."""

    model: str = "resnet_small"
    """``resnet_small``, or a function of your own as ``package.module:name``."""
    strategy: Literal["one_device", "mirrored"] = "one_device"
    replicas: int = Field(2, ge=1)
    """Devices under ``mirrored``; without GPUs, that many logical CPUs."""
    epochs: int = Field(12, ge=1)
    batch_size: int = Field(16, ge=1)
    """Samples of a global batch; a multiple of ``micro_batches``."""
    micro_batches: int = Field(2, ge=1)
    """Parts that a global batch is computed in; a multiple of the replicas."""
    learning_rate: float = Field(3e-3, gt=0)
    """The highest rate: it rises over the first steps and falls along a half cosine to zero."""
    weight_decay: float = Field(1e-4, ge=0)
    seed: int = 0
    checkpoint_steps: int = Field(100, ge=1)
    """Optimizer steps between checkpoints; one is written at the end of each epoch too."""

    @model_validator(mode="after")
    def _divisible(self) -> TrainParams:
        if self.batch_size % self.micro_batches:
            raise ValueError(
                f"batch_size must be a multiple of micro_batches (got {self.batch_size} and {self.micro_batches})"
            )
        if self.strategy == "mirrored" and self.micro_batches % self.replicas:
            raise ValueError(
                f"micro_batches must be a multiple of replicas (got {self.micro_batches} and {self.replicas})"
            )
        return self


class RegisterParams(Params):
    """The name under which models are registered."""

    name: str = Field("shardtrail", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")


class ComputeParams(Params):
    """Where the units of a stage run. Never changes what is built."""

    executor: Literal["process", "dask"] = "process"
    """``process``: worker processes of this machine; ``dask``: workers of a Dask cluster."""
    workers: int = Field(0, ge=0, le=1024)
    """Worker processes on this machine; 0: as many as this process may use cores."""
    address: str = Field("", pattern=r"^((tcp|tls)://[^\s/@?#]+:[0-9]+)?$")
    """Of the Dask scheduler, such as ``tcp://host:8786``; empty: a cluster on this machine for each run. What ``tls://``
    needs stands in Dask's own configuration (``distributed.comm.tls``)."""


class TrackingParams(Params):
    """The MLflow server or database."""

    uri: str = "sqlite:///mlflow.db"
    """``sqlite:///FILE`` (relative to the working folder) or a server's address."""
    experiment: str = "shardtrail"


class RecordParams(Params):
    """How a build is recorded."""

    dvc: bool = True
    """Commit the stages' outs to DVC, where the folder is a DVC repository."""
    git_commit: bool = False
    """Commit ``dvc.lock`` to git after it was written."""


_CRON_PART = r"(\*|[0-9A-Za-z]+(-[0-9A-Za-z]+)?)(/[0-9]+)?"
_CRON_FIELD = re.compile(rf"{_CRON_PART}(,{_CRON_PART})*")


class ScheduleParams(Params):
    """When ``nightly`` runs."""

    cron: str = "0 2 * * *"
    timezone: str = "UTC"

    @field_validator("cron")
    @classmethod
    def _five_fields(cls, value: str) -> str:
        fields = value.split()
        if len(fields) != 5 or not all(map(_CRON_FIELD.fullmatch, fields)):
            raise ValueError("write five fields: minute, hour, day, month, weekday, such as 0 2 * * *")
        return value

    @field_validator("timezone")
    @classmethod
    def _known(cls, value: str) -> str:
        import zoneinfo

        try:
            zoneinfo.ZoneInfo(value)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError) as error:
            raise ValueError("no such time zone; use a name such as Europe/Berlin") from error
        return value


class Config(Params):
    """All parameters of a working folder."""

    source: str
    """Folder, archive, or ``http(s)://`` address of an archive; relative paths start at the working folder.
    User and password of an address stand in ``~/.netrc``."""
    layout: str = "bigearthnet"
    """``bigearthnet``, or a layout of your own as ``package.module:name``."""
    check_sources: Literal["stat", "full"] = "stat"
    """``stat``: trust digests of files whose size, times and inode are unchanged; ``full``: hash everything."""
    bigearthnet: BigEarthNetParams = BigEarthNetParams()
    custom: Mapping[str, Any] = {}
    """Options handed to a layout of your own."""
    download: DownloadParams = DownloadParams()
    validate_: ValidateParams = Field(ValidateParams(), alias="validate")
    shard: ShardParams = ShardParams()
    train: TrainParams = TrainParams()
    register_: RegisterParams = Field(RegisterParams(), alias="register")
    compute: ComputeParams = ComputeParams()
    tracking: TrackingParams = TrackingParams()
    record: RecordParams = RecordParams()
    schedule: ScheduleParams = ScheduleParams()

    @field_validator("custom")
    @classmethod
    def _as_json(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"must hold what JSON can: texts, numbers, lists, mappings ({error})") from error
        return value

    @field_validator("source")
    @classmethod
    def _source(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("must name the raw data: a folder, an archive or an http(s) address")
        scheme, sign, rest = value.partition("://")
        _, at, address = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")
        if sign and at:
            # params.yaml is committed to git. Spelt with "(got", lest the value itself be shown.
            machine = re.sub(r":[0-9]*$", "", address)
            raise ValueError(
                "an address must hold no user or password, for params.yaml goes into git; put them into ~/.netrc "
                f"(machine {machine} login … password …), which is read (got {scheme}://***@{address}…)"
            )
        return value

    def digest(self) -> str:
        """sha256 of what decides the results: everything but where and when it runs."""
        kept = self.model_dump(
            mode="json", by_alias=True, exclude={"compute", "tracking", "record", "schedule", "check_sources"}
        )
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def load_config(path: Path) -> Config:
    """Read and check a ``params.yaml``.

    Raises:
        ConfigError: absent, not YAML, or with faults; all of them are named, each with the value found.
    """
    return parse_config(_read(path), path.name)


def parse_config(text: str, name: str = "params.yaml") -> Config:
    """Check the text of a ``params.yaml``; see ``load_config``."""
    from ruamel.yaml import YAML

    values = _load_yaml(YAML(typ="safe", pure=True), text, name)
    if not isinstance(values, dict):
        raise ConfigError(f"{name} must hold parameters as `key: value` lines (got {type(values).__name__})")
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{name} cannot be used:\n" + "\n".join(_faults(error))) from error


_MOST_BYTES = 2**20
"""No ``params.yaml`` is larger; YAML is read whole and slowly."""

_MOST_NESTED = 100
"""Levels of brackets, and of indentation: the YAML reader recurses."""

_LONGEST = 2000
"""Characters of one value; Python will not print integers of more than 4300 digits."""


def _load_yaml(yaml: Any, text: str, name: str) -> Any:
    """The values of a YAML text, without aliases: a few lines of them stand for gigabytes, or for themselves.

    Raises:
        ConfigError: too large, too deep, with an alias, or not YAML; dates and numbers out of range are none.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    if len(text.encode()) > _MOST_BYTES:
        raise ConfigError(f"{name} is larger than 1 MiB; no parameters are")
    try:
        depth = 0
        for event in YAML(typ="safe", pure=True).parse(text):
            kind = type(event).__name__
            if kind == "AliasEvent":
                line = event.start_mark.line + 1
                raise ConfigError(f"{name}, line {line}: aliases (*{event.anchor}) are not read; write the value out")
            value = getattr(event, "value", None) or ""
            if "\0" in value or len(value) > _LONGEST:
                what = "a NUL character" if "\0" in value else f"a value of {len(value)} characters"
                raise ConfigError(f"{name}, line {event.start_mark.line + 1}: {what}; no parameter has one")
            depth += kind.endswith("StartEvent") - kind.endswith("EndEvent")
            if depth > _MOST_NESTED:
                raise ConfigError(f"{name} nests deeper than {_MOST_NESTED} levels; no parameters do")
        return yaml.load(text)
    except ConfigError:
        raise
    except (YAMLError, ValueError, OverflowError, TypeError, AttributeError, RecursionError) as error:
        # Beside its own errors the reader lets through what Python says of the 31st of February.
        raise ConfigError(f"{name} is not YAML: {error or type(error).__name__}") from error


_EXCLUDES = {"shard.target_samples": "target_mib", "shard.target_mib": "target_samples"}
"""Of these only one may be given: to set one clears the other."""


def set_params(path: Path, assignments: Sequence[str]) -> Config:
    """Write ``section.key=value`` assignments into a ``params.yaml``, comments kept; all or none.

    Raises:
        ConfigError: an assignment is malformed or the result cannot be used; the file is then unchanged.
    """
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.representer.add_representer(type(None), _null)
    before = _read(path)
    values = _load_yaml(yaml, before, path.name)
    if not isinstance(values, dict):
        return parse_config(before, path.name)
    for assignment in assignments:
        key, sign, text = assignment.partition("=")
        if not sign or not key.strip():
            raise ConfigError(f"--set {assignment}: write it as section.key=value")
        value = _load_yaml(YAML(typ="safe", pure=True), text, f"--set {key.strip()}: the value") if text else ""
        *sections, last = key.strip().split(".")
        place = values
        for section in sections:
            if not isinstance(place.get(section), dict):
                place[section] = {}
            place = place[section]
        place[last] = value
        other = _EXCLUDES.get(key.strip())
        if other and value is not None:
            place[other] = None
    buffer = io.StringIO()
    yaml.dump(values, buffer)
    config = parse_config(buffer.getvalue(), path.name)
    if buffer.getvalue() != before:
        replacement = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        replacement.write_text(buffer.getvalue(), encoding="utf-8")
        os.replace(replacement, path)
    return config


def _null(representer: Any, _: None) -> Any:
    """``null``, where ruamel would leave the value out."""
    return representer.represent_scalar("tag:yaml.org,2002:null", "null")


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{path} is larger than 1 MiB; no parameters are")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"{path} does not exist, so {path.parent} is no working folder; make one: shardtrail init DIR --source S"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _faults(error: ValidationError) -> list[str]:
    lines = []
    for fault in error.errors():
        where = ".".join(str(part) for part in fault["loc"]) or "(file)"
        message = fault["msg"].removeprefix("Value error, ")
        found = "" if fault["type"] == "missing" or "(got " in message else f" (got {fault['input']!r})"
        near = _nearest(fault) if fault["type"] == "extra_forbidden" else ""
        lines.append(f"  {where}: {message}{found}{near}")
    return lines


def _nearest(fault: Any) -> str:
    """The known key that a misspelt one most likely means."""
    import difflib

    model: type[BaseModel] = Config
    for part in fault["loc"][:-1]:
        by_alias = {field.alias or name: field for name, field in model.model_fields.items()}
        inner = by_alias[part].annotation
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return ""
        model = inner
    known = [field.alias or name for name, field in model.model_fields.items()]
    match = difflib.get_close_matches(str(fault["loc"][-1]), known, 1)
    return f"; did you mean {match[0]}?" if match else ""
