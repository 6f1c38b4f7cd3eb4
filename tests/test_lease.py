from __future__ import annotations

import contextlib
import os
import shutil
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
from shardtrail.sharding import lease as module
if sys.argv[2:]:
    module.KERNEL = sys.argv[2]
    module.BEAT_SECONDS, module.STILL_SECONDS, module.LOOK_SECONDS = map(float, sys.argv[3:])
with module.lease(Folder(Path(sys.argv[1])), say=lambda line: print(line, flush=True)):
    print("held", flush=True)
    sys.stdin.readline()
"""


class Holder:
    """Another process that takes the lease and holds it until it is told to end.

    ``machine`` names one that it claims to run on; it then counts on every 0.1 s.
    """

    def __init__(self, root: Path, machine: str = "", still: float = 60, look: float = 0.05, within=()) -> None:
        periods = [machine, "0.1", str(still), str(look)] if machine else []
        self.process = subprocess.Popen(
            [*within, sys.executable, "-c", HOLD, str(root), *periods],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        """The next line it prints; empty at its end."""
        return self.process.stdout.readline()

    def end(self, how: signal.Signals | None = None) -> tuple[int, str, str]:
        """Have it end, by a signal or by itself; its exit status and what else it said."""
        if how:
            self.process.send_signal(how)
        said, errors = self.process.communicate("\n", timeout=60)
        return self.process.returncode, said, errors

    def __enter__(self) -> Holder:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def holder(root: Path, **how) -> Holder:
    """Another process that holds the lease."""
    one = Holder(root, **how)
    assert one.line() == "held\n", one.end()
    return one


def mounts(root: Path, names: str) -> list[Path]:
    """One working folder as machines that do not share locks see it: the note is one file, the locks are not."""
    first, *others = [root / name for name in names]
    note = first / ".shardtrail/lease"
    note.parent.mkdir(parents=True)
    note.touch()
    for other in others:
        (other / ".shardtrail").mkdir(parents=True)
        os.link(note, other / ".shardtrail/lease")
    return [first, *others]


def test_a_live_holder_is_named(tmp_path):
    """Who is turned away learns the holder's pid, host and since when."""
    with holder(tmp_path) as other:
        named = rf"process {other.pid} on {os.uname().nodename} since 20\d\d-"
        with pytest.raises(LeaseHeld, match=named), lease(Folder(tmp_path)):
            pass


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_dead_holder_is_taken_over(tmp_path, how):
    """However a holder ends, the lease is free at once."""
    holder(tmp_path).end(how)

    with lease(Folder(tmp_path)):
        assert str(os.getpid()) in (tmp_path / ".shardtrail/lease").read_text()


def test_the_holder_may_take_it_again(tmp_path):
    """A stage takes the lease that its flow holds already; it is given back with the outermost one."""
    folder = Folder(tmp_path)
    with lease(folder):
        with lease(folder):
            pass
        status, _, errors = Holder(tmp_path).end()
        assert status
        assert f"process {os.getpid()}" in errors

    assert holder(tmp_path).end()[0] == 0


@pytest.mark.parametrize("note", [b"\xff{" * 100, b"\xff{" * 9999, b"[]", b"{}", b'{"pid": 1}', b"[" * 100_000])
def test_an_unreadable_note_does_not_matter(tmp_path, note):
    """The lock counts, not the text in the file: leftovers of any kind are written over."""
    path = tmp_path / ".shardtrail/lease"
    path.parent.mkdir()
    path.write_bytes(note)

    with lease(Folder(tmp_path)):
        assert path.read_text().startswith('{"pid"')
    assert path.read_bytes() == b""


def test_folders_have_leases_of_their_own(tmp_path):
    """Two working folders are built at the same time."""
    with holder(tmp_path / "one"), lease(Folder(tmp_path / "two")):
        pass


def in_own_pids() -> list[str]:
    """A command that starts another as process 1 of a namespace of its own, where that is permitted."""
    for how in ("-pf", "-rpf"):
        command = ["unshare", how, "--kill-child"]
        if (
            shutil.which("unshare")
            and subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
        ):
            return command
    pytest.skip("no namespaces of processes are permitted here")


def test_equal_pids_are_told_apart(tmp_path):
    """Two containers' builders are both process 1: the second is refused while the first lives, not a moment longer."""
    within = in_own_pids()
    with holder(tmp_path, within=within) as first:
        status, _, errors = Holder(tmp_path, within=within).end()
        assert status
        assert "is being built by process 1 on" in errors
        first.end(signal.SIGKILL)
    assert holder(tmp_path, within=within).end()[0] == 0


def test_a_live_holder_on_another_machine_is_named(tmp_path):
    """Where locks are not shared, who finds a note that is counted on is turned away; its holder is not disturbed."""
    here, there = mounts(tmp_path, "ab")
    with holder(here, machine="a") as first:
        second = Holder(there, machine="b")
        assert f"was last built by process {first.pid} on" in second.line()
        status, said, errors = second.end()
        assert (status, said) == (1, "")
        assert f"LeaseHeld: {there} is being built by process {first.pid} on" in errors
        assert first.end()[0] == 0
    assert holder(there, machine="b").end()[:2] == (0, "")


def test_a_dead_holder_on_another_machine_is_taken_over(tmp_path):
    """Its note, which stands still, is watched for the time set, not longer; then the lease is taken."""
    here, there = mounts(tmp_path, "ab")
    holder(here, machine="a").end(signal.SIGKILL)
    with Holder(there, machine="b", still=1) as second:
        assert "stands still for 1 s" in second.line()
        assert second.line() == "held\n"
        assert second.end()[0] == 0


def test_a_holder_that_stood_still_learns_that_it_lost_the_lease(tmp_path):
    """A machine that slept is taken over; when it wakes, its build ends with an error that names the new holder."""
    here, there = mounts(tmp_path, "ab")
    with holder(here, machine="a") as first:
        first.process.send_signal(signal.SIGSTOP)
        with Holder(there, machine="b", still=1) as second:
            assert [second.line()[-11:], second.line()] == ["taken over\n", "held\n"]
            note = (there / ".shardtrail/lease").read_text()
            first.process.send_signal(signal.SIGCONT)
            status, _, errors = first.end()
            assert status
            assert f"is being built by process {second.pid} on" in errors
            assert note[:100] == (there / ".shardtrail/lease").read_text()[:100]
            assert second.end()[0] == 0


def test_of_two_that_take_over_at_once_one_does(tmp_path):
    """Two machines that find a third one dead at the same moment do not both build."""
    here, *others = mounts(tmp_path, "abc")
    holder(here, machine="a").end(signal.SIGKILL)
    with contextlib.ExitStack() as stack:
        takers = [stack.enter_context(Holder(root, machine=root.name, still=1, look=0.5)) for root in others]
        assert all("was last built by" in taker.line() for taker in takers)
        assert sorted(taker.line() for taker in takers) == ["", "held\n"]
        assert sorted(taker.end()[0] for taker in takers) == [0, 1]
