"""Ours, from photographs to verified shards, in the stages of ``write_shards.ours``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.write_shards.ours import write

if __name__ == "__main__":
    print(json.dumps(write(Path(sys.argv[1]), Path(sys.argv[2]), layout="benchmarks.jpeg.layout:Photographs")))
