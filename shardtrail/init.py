"""Make a working folder: parameters, stages, git and DVC."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from shardtrail.config import TrainParams, parse_config
from shardtrail.errors import ConfigError, PipelineError
from shardtrail.files import write_atomic
from shardtrail.folder import Folder
from shardtrail.git import commit, git, is_repository
from shardtrail.records.example import ENCODING_VERSION

_PARAMS = """\
# Every parameter, with its default. Unknown keys are refused; check with: shardtrail check
source: {source}  # folder, archive, or http(s) address of an archive
layout: {layout}  # bigearthnet, or your own as package.module:name
check_sources: stat       # stat: trust files whose size, times and inode are unchanged; full: hash everything

bigearthnet:
  sensors: auto           # s2, s1s2 (pairs), or auto: pairs if the source holds at least one
  classes: 19             # 19 or 43
  splits: []              # official lists, such as [train.csv, val.csv, test.csv]; v2's own table is found by itself
  exclude: []             # lists of patches to leave out (snow, cloud and shadow)
  empty_labels: quarantine  # or keep

custom: {{}}                # options of a layout of your own

download:
  checksum: ""            # published checksum of an archive, such as md5:5a64e9ce38deb036a435a7b59494924c

validate:
  max_bad_share: null     # fail when more than this share is quarantined, such as 0.01
  select:
    share: 1.0            # share of the samples, drawn by a seeded hash
    seed: 0
    classes: []           # only samples with one of these labels
    countries: []
    date_from: null       # 2017-06-01
    date_to: null
  split:                  # for samples that no official list assigns
    by: region            # region: neighbours stay together; or sample
    train: 0.8
    validation: 0.1
    test: 0.1
    seed: 0

shard:
  group: none             # none, region, month, grid (by degrees), or any column of the manifest
  order: shuffled         # or natural: by acquisition
  cut: stable             # stable: a new sample usually changes one shard; exact: equal sizes
  target_samples: null    # samples of a shard ...
  target_mib: {target:<11} # ... or its size (192 where neither is given)
  encoding: raw           # raw: little-endian bytes; zlib: compressed; int64: as BigEarthNet's own scripts write
  seed: 0

train:
{train}
register:
  name: {name}

compute:
  executor: process       # process: of this machine; dask: a Dask cluster
  workers: 0              # 0: as many as there are cores
  address: ""             # of the Dask scheduler, such as tcp://host:8786; empty: a cluster on this machine

tracking:
  uri: sqlite:///mlflow.db  # or a server's address
  experiment: {name}

record:
  dvc: true
  git_commit: {git_commit}       # commit dvc.lock after every build

schedule:
  cron: 0 2 * * *
  timezone: UTC
"""

_DVC = """\
# The stages that `dvc repro` runs. They take in no news: `shardtrail run` does.
# Remade by `shardtrail init`; the encoding's version stands in the command so that a new one rebuilds the shards.
stages:
  download:
    cmd: python -m shardtrail.stages download
    params: [source, download]
    outs:
    - data/inventory.parquet: {{persist: true}}
    always_changed: true
  validate:
    cmd: python -m shardtrail.stages validate
    deps: [data/inventory.parquet]
    params: [layout, bigearthnet, custom, validate]
    outs:
    - data/manifest.parquet: {{persist: true}}
    - data/quarantine.csv
    - data/warnings.csv
    - data/statistics.json
  shard:
    cmd: python -m shardtrail.stages shard --encoding-version {version}
    deps: [data/manifest.parquet]
    params: [shard]
    outs:
    - data/plan.parquet: {{persist: true}}
    - data/shards: {{persist: true}}
  hash:
    cmd: python -m shardtrail.stages hash
    deps: [data/plan.parquet, data/shards, data/statistics.json]
    outs: [data/dataset.json]
  train:
    cmd: python -m shardtrail.stages train
    deps: [data/dataset.json, data/shards]
    params: [train, register]
    outs: [models, plots]
    metrics:
    - metrics.json: {{cache: false}}
  register:
    cmd: python -m shardtrail.stages register
    deps: [models, metrics.json]
    params: [register]
    outs:
    - registration.json: {{cache: false}}
"""

_GITIGNORE = """\
# what a build makes: DVC and MLflow keep it
/data/
/models/
/plots/
/.shardtrail/
/mlflow.db*
/mlartifacts/
*.tmp
"""

_DVCIGNORE = """\
*.tmp
.shardtrail
data/view
data/unpacked
data/download
data/retired
"""


def params_text(
    source: str,
    layout: str = "bigearthnet",
    name: str = "shardtrail",
    git_commit: bool = True,
    target_mib: float | None = None,
) -> str:
    """The text of a ``params.yaml`` with every parameter at its default."""
    import json

    defaults = TrainParams().model_dump(mode="json")
    train = "".join(f"  {key}: {json.dumps(value)}\n" for key, value in defaults.items())
    return _PARAMS.format(
        source=json.dumps(source, ensure_ascii=False),
        layout=json.dumps(layout, ensure_ascii=False),
        name=name,
        train=train,
        target="null" if target_mib is None else f"{target_mib:g}",
        git_commit="true" if git_commit else "false",
    )


def dvc_text() -> str:
    """The text of ``dvc.yaml``: the six stages."""
    return _DVC.format(version=ENCODING_VERSION)


def init(root: Path, source: str, layout: str = "bigearthnet") -> list[str]:
    """Make ``root`` a working folder. Files that exist are kept, so repeating it is safe.

    Args:
        root: made if absent.
        source: folder, archive or address; a relative path starts at ``root``.
        layout: name of the layout.

    Returns:
        What was made, a line each.

    Raises:
        ConfigError: ``root`` is a file, or the parameters cannot be used.
    """
    if root.exists() and not root.is_dir():
        raise ConfigError(f"{root} is not a folder")
    folder = Folder(root.resolve())
    name = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in folder.root.name).strip(".-_")
    text = params_text(source, layout, name or "shardtrail")
    parse_config(text)
    root.mkdir(parents=True, exist_ok=True)
    made = []
    for path, content in {
        folder.params: text,
        folder.root / "dvc.yaml": dvc_text(),
        folder.root / ".gitignore": _GITIGNORE,
        folder.root / ".dvcignore": _DVCIGNORE,
    }.items():
        if not path.exists():
            write_atomic(path, content.encode())
            made.append(path.name)
    made += _repositories(folder)
    return made


def caution(source: str) -> str:
    """What to look at in a source before its ``params.yaml`` is shared; empty if nothing.

    A query may be as harmless as ``?download=1``, or a token: nobody but the user can tell.
    """
    if "://" not in source or "?" not in source:
        return ""
    return "params.yaml holds the query of the source's address, and git keeps it: make sure that it is no token"


def _repositories(folder: Folder) -> list[str]:
    """git and DVC, where the folder lies in none yet."""
    made = []
    if not is_repository(folder.root):
        git(folder.root, "init", "--quiet")
        made.append("git repository")
    if not any((parent / ".dvc").is_dir() for parent in (folder.root, *folder.root.parents)):
        inside = git(folder.root, "rev-parse", "--show-prefix").stdout.strip()
        _must(folder.root, sys.executable, "-m", "dvc", "init", "--quiet", *(["--subdir"] if inside else []))
        settings = (("cache.type", "hardlink,copy"), ("core.analytics", "false"), ("core.autostage", "false"))
        for key, value in settings:
            _must(folder.root, sys.executable, "-m", "dvc", "config", key, value)
        made.append("DVC repository (cache by hard links)")
    tracked = ["params.yaml", "dvc.yaml", ".gitignore", ".dvcignore", ".dvc/config", ".dvc/.gitignore"]
    commit(folder.root, "Set up the working folder", [name for name in tracked if (folder.root / name).exists()])
    return made


def _must(root: Path, *command: str) -> None:
    environment = os.environ | {"DVC_NO_ANALYTICS": "1"}
    answer = subprocess.run(
        command, cwd=root, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if answer.returncode != 0:
        raise PipelineError(f"{' '.join(command)} failed in {root}:\n{(answer.stderr or answer.stdout).strip()}")
