"""The command: help everywhere, exit statuses, one-line errors, JSON alone on standard output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardtrail.init import params_text
from shardtrail.sample_data import make_sample_data

COMMANDS = ("init", "check", "plan", "run", "status", "verify", "trace", "inspect", "export", "gc", "sample-data", "ui")


def shardtrail(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    """--help of each command prints its usage and ends with 0."""
    answer = shardtrail(command, "--help")
    assert answer.returncode == 0, answer.stderr
    assert f"shardtrail {command}" in answer.stdout or "Usage:" in answer.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("nosuch",),
        ("run", "--until", "trian"),
        ("run", "--set", "shard.target_mb=3"),
        ("run", "--set", "shard.cut=["),
        ("trace", "modl", "x"),
        ("inspect", "train-00000"),
        ("plan",),
    ],
)
def test_usage_and_configuration_errors_end_with_2_and_no_trace(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """What the user has to mend is said in a few lines, without a Python trace; nothing is written."""
    (tmp_path / "params.yaml").write_text(params_text("raw"))
    answer = shardtrail(*arguments, folder=tmp_path)
    assert answer.returncode == 2, answer.stderr
    assert answer.stderr.strip() and "Traceback" not in answer.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["params.yaml"]


def test_a_missing_source_ends_with_1_and_names_it(tmp_path: Path) -> None:
    """A source that is not there fails the work by name."""
    (tmp_path / "params.yaml").write_text(params_text("nowhere"))
    for arguments in (("check",), ("run", "--until", "download")):
        answer = shardtrail(*arguments, folder=tmp_path)
        assert answer.returncode == 1, answer.stderr
        assert "nowhere" in answer.stdout + answer.stderr and "Traceback" not in answer.stderr


@pytest.mark.timeout(600)
def test_a_build_from_the_command_line(tmp_path: Path) -> None:
    """init, check, run, status, verify: quiet, right statuses, JSON alone on standard output; news cost only news."""
    make_sample_data(tmp_path / "raw", samples=30, broken=1)
    work = tmp_path / "work"
    assert shardtrail("init", str(work), "--source", str(tmp_path / "raw")).returncode == 0
    assert shardtrail("check", folder=work).returncode == 0
    built = shardtrail("run", "--until", "hash", "--set", "shard.target_samples=5", folder=work)
    assert built.returncode == 0, built.stderr
    assert "30 seen = 29 accepted + 1 quarantined + 0 excluded" in built.stdout
    assert not {"Traceback", "ERROR", "Error", "WARNING"} & set((built.stdout + built.stderr).replace(":", " ").split())

    status = json.loads(shardtrail("status", "--json", folder=work).stdout)
    assert status["planned"] == status["done"] > 3
    assert (status["failed"], status["missing"]) == ([], [])

    # A parameter that leaves every patch's verdict as it is, but not the set.
    fewer = shardtrail("run", "--until", "hash", "--set", "validate.select.share=0.7", folder=work)
    assert fewer.returncode == 0, fewer.stderr
    assert "+ 0 excluded" not in fewer.stdout

    shard = next((work / "data" / "shards").glob("train-*.tfrecord"))
    shard.unlink()
    found = shardtrail("verify", "--json", folder=work)
    assert found.returncode == 1
    assert [fault["kind"] for fault in json.loads(found.stdout)["faults"]] == ["missing_shard"]
    repaired = shardtrail("verify", "--deep", "--repair", "--json", folder=work)
    assert repaired.returncode == 0
    assert len(json.loads(repaired.stdout)["repaired"]) == 1


@pytest.mark.timeout(300)
def test_an_interrupted_run_says_so_and_goes_on(tmp_path: Path) -> None:
    """Ctrl-C ends a run with 130 and one line; nothing stays behind and the same command finishes the work."""
    make_sample_data(tmp_path / "raw", samples=200, broken=0)
    work = tmp_path / "work"
    assert shardtrail("init", str(work), "--source", str(tmp_path / "raw")).returncode == 0
    command = [sys.executable, "-m", "flows.cli", "run", "--until", "hash", "--set", "shard.target_samples=5"]
    process = subprocess.Popen(command, cwd=work, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 120
    while not list((work / "data").glob("shards/*.tfrecord")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "the same command goes on from here" in errors and "Traceback" not in errors
    again = shardtrail("run", "--until", "hash", folder=work)
    assert again.returncode == 0, again.stderr
    assert json.loads(shardtrail("status", "--json", folder=work).stdout)["missing"] == []
