"""params.yaml: every fault at once, misspelt keys refused, --set all or nothing."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from shardtrail.config import Config, load_config, parse_config, set_params
from shardtrail.errors import ConfigError
from shardtrail.init import caution, init, params_text


def test_all_faults_are_reported_at_once_with_path_and_value() -> None:
    """Three faults in three sections come in one error, each with the value found and a near key."""
    with pytest.raises(ConfigError) as caught:
        parse_config("source: x\nshard: {target_mb: 64}\ntrain: {epochs: 0}\nvalidate: {split: {train: 0.5}}\n")
    text = str(caught.value)
    assert "shard.target_mb" in text and "(got 64); did you mean target_mib?" in text
    assert "train.epochs" in text and "(got 0)" in text
    assert "validate.split: train + validation + test must be 1 (got 0.7)" in text


@pytest.mark.parametrize("text", ["", "- a", "source: [", "source: ''", "{}"])
def test_unusable_files_are_configuration_errors(text: str) -> None:
    """No parameters, no mapping, no YAML, no source: always a ConfigError."""
    with pytest.raises(ConfigError):
        parse_config(text)


@pytest.mark.parametrize(
    "source",
    [
        "https://me:passw0rd@host.example:8443/set.tar",
        "HTTPS://passw0rd@host.example",
        "http://me:p@passw0rd@host.example?x",
        "s3://me:passw0rd@bucket/set",
    ],
)
def test_a_source_with_a_password_is_refused_without_showing_it(tmp_path: Path, source: str) -> None:
    """User and password of an address have their place in ~/.netrc; the error says so, and holds neither."""
    with pytest.raises(ConfigError, match=r"source: .*~/\.netrc") as caught:
        parse_config(params_text(source))
    shown = "".join(traceback.format_exception(caught.value))
    assert "passw0rd" not in shown and "***@" in shown
    with pytest.raises(ConfigError):
        init(tmp_path / "work", source)
    assert not (tmp_path / "work").exists()


def test_an_at_sign_elsewhere_is_no_password() -> None:
    """Folders, paths and queries may have an @ in them."""
    for source in ("raw@home", "/data/a@b.tar", "https://host/a@b.tar", "https://host/x?mail=a@b", "https://host?a@b"):
        assert parse_config(params_text(source)).source == source


def test_a_query_is_kept_with_a_word_of_caution() -> None:
    """A query may be a token or harmless: `init` asks the user to look at it, and says nothing of other sources."""
    assert "token" in caution("https://host/set.tar?download=1")
    assert not any(map(caution, ("raw?", "https://host/set.tar", "raw")))


def test_the_written_params_hold_every_parameter_at_its_default() -> None:
    """What `init` writes parses to the defaults, so that the file documents them truly."""
    written = parse_config(params_text("raw", name="shardtrail", git_commit=False))
    assert written == Config(source="raw")


def test_set_writes_into_the_file_and_keeps_comments(tmp_path: Path) -> None:
    """--set changes one value; comments and the other lines stay."""
    params = tmp_path / "params.yaml"
    params.write_text(params_text("raw"))
    before = params.read_text().splitlines()
    config = set_params(params, ["shard.target_samples=100", "shard.group=month"])
    after = params.read_text().splitlines()
    assert config == load_config(params)
    assert (config.shard.target_samples, config.shard.group) == (100, "month")
    changed = [line for line in after if line not in before]
    assert len(before) == len(after) and len(changed) <= 3
    assert sum("#" in line for line in after) == sum("#" in line for line in before)


@pytest.mark.parametrize(
    "assignment", ["shard.target_samples=none", "shard.nothing=1", "novalue", "=1", "shard.cut=[", "source=''"]
)
def test_a_bad_set_changes_nothing(tmp_path: Path, assignment: str) -> None:
    """If one assignment cannot be used, none is written."""
    params = tmp_path / "params.yaml"
    params.write_text(params_text("raw"))
    before = params.read_bytes()
    with pytest.raises(ConfigError):
        set_params(params, ["train.epochs=3", assignment])
    assert params.read_bytes() == before


def test_one_target_clears_the_other(tmp_path: Path) -> None:
    """To set a target in samples takes back the one in MiB, since only one may be given."""
    params = tmp_path / "params.yaml"
    params.write_text(params_text("raw", target_mib=16))
    assert set_params(params, ["shard.target_samples=100"]).shard.target_mib is None


def test_where_it_runs_does_not_change_the_digest() -> None:
    """Workers, tracking and schedule are no part of what decides the results."""
    base = parse_config("source: x")
    assert parse_config("source: x\ncompute: {workers: 3}\nschedule: {timezone: Asia/Tokyo}").digest() == base.digest()
    assert parse_config("source: x\nshard: {seed: 1}").digest() != base.digest()


BOMB = "a: &a [x, x]\n" + "".join(
    f"{one}: &{one} [{f'*{last}, ' * 9}]\n" for last, one in ("ab", "bc", "cd", "de", "ef")
)

HOSTILE = {
    "no such day": "validate: {select: {date_from: 2017-02-31}}",
    "5000 digits": "shard: {seed: " + "9" * 5000 + "}",
    "9000 hex digits": "shard: {seed: 0x" + "f" * 9000 + "}",
    "deep brackets": "custom: " + "[" * 50_000,
    "deep lines": "custom:\n" + "".join(" " * level + "a:\n" for level in range(1, 300)),
    "recursive alias": "custom: &a {b: *a}",
    "alias bomb": BOMB,
    "large": "custom: {a: " + "[1], " * 300_000 + "}",
    "infinity": "train: {learning_rate: .inf}",
    "not a number": "validate: {max_bad_share: .nan}",
    "infinity in options": "custom: {a: [.inf]}",
    "a day in options": "custom: {a: 2017-01-01}",
    "NUL": 'layout: "a\\0b"',
    "Python object": "custom: !!python/object:os.system x",
    "bad tag": "shard: {target_mib: !!float x}",
    "keys that are lists": "? [a, b]\n: 1",
    "workers": "compute: {workers: 1025}",
    "cron of words": "schedule: {cron: at night}",
    "cron of four fields": "schedule: {cron: 0 2 * *}",
    "cron with a command": "schedule: {cron: 0 2 * * $(id)}",
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_hostile_files_are_configuration_errors(tmp_path: Path, fault: str) -> None:
    """What a YAML reader stumbles over ends in a ConfigError, read alone or under --set, which then writes nothing."""
    params = tmp_path / "params.yaml"
    params.write_text(f"source: x\n{HOSTILE[fault]}\n")
    before = params.read_bytes()
    with pytest.raises(ConfigError):
        load_config(params)
    with pytest.raises(ConfigError):
        set_params(params, ["train.epochs=3"])
    assert params.read_bytes() == before


@pytest.mark.parametrize("value", ["[" * 5000, "&a [*a]", "2017-02-31", "9" * 5000, ".inf"])
def test_hostile_assignments_are_configuration_errors(tmp_path: Path, value: str) -> None:
    """The value of --set is read with the same care as the file."""
    params = tmp_path / "params.yaml"
    params.write_text("source: x\n")
    with pytest.raises(ConfigError):
        set_params(params, [f"train.learning_rate={value}"])
    assert params.read_text() == "source: x\n"


@pytest.mark.parametrize("cron", ["0 2 * * *", "*/15 0-6,22 1,15 JAN-MAR mon-fri"])
def test_cron_lines_are_taken(cron: str) -> None:
    """Steps, ranges, lists and names are cron."""
    assert parse_config(f"source: x\nschedule: {{cron: '{cron}'}}").schedule.cron == cron
