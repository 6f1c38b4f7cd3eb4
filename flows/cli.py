"""The command ``shardtrail``. Works in the current folder, or in the one given with ``-C``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from shardtrail.errors import ConfigError, PipelineError

app = typer.Typer(
    name="shardtrail",
    help="Raw image archives in, verified TFRecord shards and traceable TensorFlow models out.\n\n"
    "Example: shardtrail init mydata --source /data/BigEarthNet && shardtrail -C mydata run",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Stage = Literal["download", "validate", "shard", "hash", "train", "register"]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


class _State:
    """What the options before the command set."""

    root = Path()
    debug = False


@app.callback()
def _options(
    folder: Annotated[
        Path, typer.Option("-C", "--folder", metavar="DIR", help="The working folder (one with a params.yaml).")
    ] = Path(),
    debug: Annotated[bool, typer.Option("--debug", help="Show the whole trace of an error.")] = False,
) -> None:
    _State.root, _State.debug = folder, debug


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Made if absent.")],
    source: Annotated[str, typer.Option(help="Folder, archive or http(s) address; relative to DIR.")],
    layout: Annotated[str, typer.Option(help="bigearthnet, or your own as package.module:name.")] = "bigearthnet",
) -> None:
    """Make a working folder: params.yaml, dvc.yaml, git and DVC.

    Example: shardtrail init mydata --source /data/BigEarthNet
    """
    from flows.console import err, out
    from shardtrail.init import caution
    from shardtrail.init import init as make

    target = _State.root / folder
    made = make(target, source, layout)
    out.print(f"{target}: " + (", ".join(made) if made else "nothing to do, all of it exists"))
    if words := caution(source):
        err.print(f"[yellow]![/] {words}")
    out.print(f"next: shardtrail -C {target} check, then run")


@app.command()
def check() -> None:
    """Check parameters, source and disk space; nothing is run or written."""
    from flows.console import out
    from shardtrail.check import check as examine
    from shardtrail.job import open_job

    findings = examine(open_job(_State.root))
    for finding in findings:
        mark = "[green]✓[/]" if finding.good else "[red]✗[/]"
        out.print(f"{mark} {finding.subject:11} ", end="")
        out.print(finding.text, markup=False)
    if not all(finding.good for finding in findings):
        raise typer.Exit(1)


@app.command()
def plan(as_json: Json = False) -> None:
    """Show which shards would be made and what a change would cost; nothing is written."""
    from flows import show
    from shardtrail.job import open_job

    show.plan(open_job(_State.root), as_json)


@app.command()
def run(
    until: Annotated[Stage, typer.Option(help="The last stage to run.")] = "register",
    only: Annotated[list[str] | None, typer.Option(metavar="SHARD", help="Only this shard (again for more).")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Write a parameter into params.yaml first.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Hash every raw file again, whatever its times say.")] = False,
) -> None:
    """Bring everything up to date: download, validate, shard, hash, train, register.

    What is done and unchanged is not done again; an interrupted run goes on where it stopped.

    Example: shardtrail run --until hash --set shard.target_mib=64
    """
    from flows.run import run_pipeline
    from shardtrail.config import load_config, set_params

    params = _State.root / "params.yaml"
    config = set_params(params, assignments) if assignments else load_config(params)
    run_pipeline(_State.root, config, until, tuple(only or ()), full)


@app.command()
def status(as_json: Json = False) -> None:
    """Compare the plan with what is on disk."""
    from flows import show
    from shardtrail.job import open_job

    show.status(open_job(_State.root), as_json)


@app.command()
def verify(
    deep: Annotated[bool, typer.Option("--deep", help="Read every record of every shard.")] = False,
    repair: Annotated[bool, typer.Option("--repair", help="Rebuild the faulty shards from the raw files.")] = False,
    as_json: Json = False,
) -> None:
    """Check the shards: sizes and receipts, or with --deep every byte. Exit status 1 if faults remain."""
    from flows import show
    from shardtrail.execution import open_mapper
    from shardtrail.job import open_job

    job = open_job(_State.root)
    with open_mapper(job) as mapper:
        sound = show.verify(_with(job, mapper, as_json), deep, repair, as_json)
    if not sound:
        raise typer.Exit(1)


@app.command()
def trace(
    kind: Annotated[Literal["model", "sample", "file", "shard"], typer.Argument(help="What NAME is.")],
    name: Annotated[str, typer.Argument(help="MODEL, MODEL/3 or MODEL@candidate; a sample id, a file path, a shard.")],
    tracking_uri: Annotated[str, typer.Option(help="Default: tracking.uri of params.yaml.")] = "",
    as_json: Json = False,
) -> None:
    """Follow a model back to its raw files, or a raw file forward to shards and models.

    Example: shardtrail trace model bigearthnet --tracking-uri http://127.0.0.1:5000 --json
    """
    from flows import show

    show.trace(_State.root, kind, name, tracking_uri, as_json)


@app.command()
def inspect(
    shard: Annotated[str, typer.Argument(help="Address, name or file of a shard.")],
    record: Annotated[int | None, typer.Option(help="Show this record, counted from 0.")] = None,
    as_json: Json = False,
) -> None:
    """Show what a shard or one of its records holds."""
    from flows import show
    from shardtrail.folder import Folder

    show.inspect(Folder(_State.root.resolve()), shard, record, as_json)


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New, empty, or of an export that was interrupted.")],
    split: Annotated[list[str] | None, typer.Option(help="Only this split (again for more).")] = None,
    gzip: Annotated[bool, typer.Option("--gzip", help="Compress every shard: read from the beginning only.")] = False,
    as_json: Json = False,
) -> None:
    """Copy the shards, checked, under names such as train-00003-of-00118.tfrecord, with all that describes them.

    What is there and right is not copied again.

    Example: shardtrail export /media/disk/bigearthnet --split train --gzip
    """
    from flows import show
    from shardtrail.execution import open_mapper
    from shardtrail.job import open_job

    job = open_job(_State.root)
    with open_mapper(job) as mapper:
        show.export(_with(job, mapper, as_json), _State.root / folder, split or (), gzip, as_json)


@app.command()
def gc(
    keep: Annotated[float, typer.Option(metavar="DAYS", help="Spare what was touched within this time.")] = 7.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: Json = False,
) -> None:
    """Remove what nothing needs any more: old retired shards, their receipts, checkpoints of other trainings.

    Raw data, current shards, models and DVC's cache stay; for the cache there is `dvc gc`.

    Example: shardtrail gc --keep 30 --dry-run
    """
    from flows import show
    from shardtrail.job import open_job

    show.gc(open_job(_State.root), keep, dry_run, as_json)


@app.command("sample-data")
def sample_data(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Made if absent.")],
    layout: Annotated[Literal["bigearthnet"], typer.Option(help="The archive's layout.")] = "bigearthnet",
    samples: Annotated[int, typer.Option(min=1, help="Patches.")] = 600,
    seed: Annotated[int, typer.Option(help="Other patches.")] = 0,
) -> None:
    """Make up an archive in the true layout, with a few broken patches on purpose; the same bytes everywhere.

    Example: shardtrail sample-data /tmp/ben --samples 1000
    """
    from flows.console import out, progress
    from shardtrail.sample_data import make_sample_data

    made = make_sample_data(_State.root / folder, samples=samples, seed=seed, progress=progress())
    for name, reason in made.broken:
        out.print(f"  {name}: {reason}", markup=False)


@app.command()
def ui(
    which: Annotated[Literal["prefect", "mlflow"], typer.Argument(help="Whose pages.")],
    port: Annotated[int, typer.Option(help="0 picks a free one.")] = 0,
) -> None:
    """Show the pages of Prefect (runs, shards, books) or MLflow (metrics, models) until Ctrl-C.

    Example: shardtrail ui mlflow --port 5000
    """
    from flows.server import mlflow_pages, prefect_pages
    from shardtrail.job import open_job

    job = open_job(_State.root)
    (prefect_pages if which == "prefect" else mlflow_pages)(job, port)


def _with(job: Any, mapper: Any, quiet: bool) -> Any:
    import dataclasses

    from flows.console import progress
    from shardtrail.progress import Silent

    return dataclasses.replace(job, mapper=mapper, progress=Silent() if quiet else progress())


_INTERRUPTED = 130


def guarded(command: Callable[[], Any]) -> int:
    """Run a command; turn its end into an exit status: 0 done, 1 the work failed, 2 usage or configuration."""
    try:
        command()
    except SystemExit as end:
        if end.code == _INTERRUPTED:  # the command line's library has caught Ctrl-C
            print("interrupted; what is done is kept, the same command goes on from here", file=sys.stderr)
        return end.code if isinstance(end.code, int) else 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (PipelineError, OSError) as error:
        if _State.debug:
            raise
        name = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
        print(f"{name}{error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


def main() -> None:
    """Entry point of ``shardtrail``."""
    sys.exit(guarded(app))


if __name__ == "__main__":
    main()
