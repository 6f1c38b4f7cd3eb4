"""``python -m benchmarks.plan.run [METADATA]``: time and memory of a plan, from manifest.parquet to plan.parquet.

Of BigEarthNet v2's ``metadata.parquet``, if it is named, and of ten million made-up samples. Manifests are made in
processes of their own; what is measured is one process that reads, plans and writes.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.measure import machine, measure

HERE = Path(__file__).parent


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("metadata", type=Path, nargs="?", help="BigEarthNet v2's metadata.parquet")
    parser.add_argument("--rows", type=int, default=10_000_000)
    options = parser.parse_args()
    sources = [("made-up ids", str(options.rows), (("none", 5000), ("month", 5000)))]
    if options.metadata:
        sources.insert(0, ("BigEarthNet v2", str(options.metadata.resolve()), (("none", 500), ("grid", 500))))
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, source, settings in sources:
            manifest = Path(scratch, "manifest.parquet")
            measure("benchmarks.plan.manifests", str(manifest), source)
            for group, target in settings:
                plan = Path(scratch, "plan.parquet")
                run = measure("benchmarks.plan.stage", str(manifest), str(plan), group, str(target))
                plan.unlink()
                rows.append({"samples": name, "group": group, "target": target} | json.loads(run.output))
                print(json.dumps(rows[-1]), flush=True)
        versions = {"python": platform.python_version(), "pyarrow": pa.__version__, "numpy": np.__version__}
        result = {"rows": rows, "versions": {".venv": versions}, "machine": machine(Path(scratch))}
    (HERE / "result.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
