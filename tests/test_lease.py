from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shardtrail.errors import LeaseHeld
from shardtrail.folder import Folder
from shardtrail.sharding.lease import lease

HOLD = """
import sys, time
from pathlib import Path
from shardtrail.folder import Folder
from shardtrail.sharding.lease import lease
with lease(Folder(Path(sys.argv[1]))):
    print("held", flush=True)
    time.sleep(60)
"""


def holder(root: Path) -> subprocess.Popen[str]:
    """Another process that holds the lease."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(root)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_live_holder_is_named(tmp_path):
    """Who is turned away learns the holder's pid, host and since when."""
    process = holder(tmp_path)
    try:
        named = rf"process {process.pid} on {os.uname().nodename} since 20\d\d-"
        with pytest.raises(LeaseHeld, match=named), lease(Folder(tmp_path)):
            pass
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_dead_holder_is_taken_over(tmp_path, how):
    """However a holder ends, the lease is free at once."""
    process = holder(tmp_path)
    process.send_signal(how)
    process.wait()

    with lease(Folder(tmp_path)):
        assert str(os.getpid()) in (tmp_path / ".shardtrail/lease").read_text()


def test_the_holder_may_take_it_again(tmp_path):
    """A stage takes the lease that its flow holds already; it is given back with the outermost one."""
    folder = Folder(tmp_path)
    with lease(folder):
        with lease(folder):
            pass
        with pytest.raises(subprocess.CalledProcessError) as refused:
            subprocess.run([sys.executable, "-c", HOLD, str(tmp_path)], check=True, capture_output=True, timeout=60)
        assert f"process {os.getpid()}" in refused.value.stderr.decode()

    process = holder(tmp_path)
    process.kill()
    process.wait()


def test_an_unreadable_note_does_not_matter(tmp_path):
    """The lock counts, not the text in the file: leftovers of any kind are written over."""
    path = tmp_path / ".shardtrail/lease"
    path.parent.mkdir()
    path.write_bytes(b"\xff{" * 100)

    with lease(Folder(tmp_path)):
        assert path.read_text().startswith('{"pid"')
    assert path.read_bytes() == b""


def test_folders_have_leases_of_their_own(tmp_path):
    """Two working folders are built at the same time."""
    process = holder(tmp_path / "one")
    try:
        with lease(Folder(tmp_path / "two")):
            pass
    finally:
        process.kill()
        process.wait()
