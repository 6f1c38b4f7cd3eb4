"""The few git commands that are needed."""

from __future__ import annotations

import subprocess
from pathlib import Path

from shardtrail.errors import PipelineError


class GitError(PipelineError, RuntimeError):
    """A git command failed; the text is git's."""


def git(root: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run one git command in ``root``.

    Raises:
        GitError: it failed and ``check`` is on.
    """
    answer = subprocess.run(
        ["git", "-C", str(root), *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if check and answer.returncode != 0:
        text = answer.stderr.strip() or answer.stdout.strip()
        raise GitError(f"git {' '.join(arguments)} failed in {root}:\n{text}")
    return answer


def is_repository(root: Path) -> bool:
    """Whether ``root`` lies in a git work tree."""
    return git(root, "rev-parse", "--is-inside-work-tree", check=False).returncode == 0


def head(root: Path) -> str:
    """The commit checked out in ``root``; empty outside a repository or before a first commit."""
    return git(root, "rev-parse", "--verify", "--quiet", "HEAD", check=False).stdout.strip()


def commit(root: Path, message: str, paths: list[str]) -> str:
    """Commit ``paths`` alone, if they changed; return HEAD. A committer is made up where git knows none."""
    git(root, "add", "--", *paths)
    if git(root, "diff", "--cached", "--quiet", "--", *paths, check=False).returncode != 0:
        known = git(root, "config", "user.email", check=False).returncode == 0
        who = [] if known else ["-c", "user.name=shardtrail", "-c", "user.email=shardtrail@localhost"]
        git(root, *who, "commit", "--quiet", "--no-verify", "-m", message, "--", *paths)
    return head(root)
