"""Imports point one way, and heavy packages stay where they belong."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
WITH_TENSORFLOW = ("shardtrail/reading/", "shardtrail/models/", "shardtrail/training/")


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def modules(package: str) -> list[tuple[str, set[str]]]:
    found = [(path.relative_to(ROOT).as_posix(), set(imports(path))) for path in (ROOT / package).rglob("*.py")]
    assert found
    return found


def test_the_library_knows_neither_tasks_nor_flows_nor_prefect():
    """shardtrail imports nothing above it."""
    assert [name for name, used in modules("shardtrail") if used & {"flows", "tasks", "prefect"}] == []


def test_tasks_know_no_flows():
    """tasks import the library, never the flows above them."""
    assert [name for name, used in modules("tasks") if "flows" in used] == []


def test_tensorflow_stays_where_models_are():
    """Only reading, models and training import TensorFlow or Keras."""
    heavy = [name for name, used in modules("shardtrail") if used & {"tensorflow", "keras"}]
    assert heavy
    assert [name for name in heavy if not name.startswith(WITH_TENSORFLOW)] == []


def test_one_place_knows_mlflow_and_one_boto3():
    """Only tracking imports MLflow, only storage boto3."""
    for package, home in (("mlflow", "shardtrail/tracking/"), ("boto3", "shardtrail/storage/")):
        users = [name for layer in ("shardtrail", "tasks", "flows") for name, used in modules(layer) if package in used]
        assert [name for name in users if not name.startswith(home)] == []
