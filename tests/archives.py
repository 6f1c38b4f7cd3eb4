"""Archives made for tests, and a disk that takes no more."""

import contextlib
import io
import os
import resource
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

FileSizeLimit = Callable[[int], contextlib.AbstractContextManager[None]]

FILES = {
    "set/a/one.tif": b"1" * 70_000,
    "set/a/two.json": b"{}",
    "set/b/empty": b"",
    "set/a b+100%20#'日本.jpg": os.urandom(3_000),
    f"set/{'deep/' * 60}{'n' * 200}.tif": b"long",
}
MTIME = 1_500_000_001


def add(archive: tarfile.TarFile, name: str, content: bytes = b"", **fields: object) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = len(content), MTIME, 0o6777
    for key, value in fields.items():
        setattr(member, key, value)
    archive.addfile(member, io.BytesIO(content))


def make_tar(path: Path, mode: str = "w", format: int = tarfile.PAX_FORMAT, files: dict[str, bytes] = FILES) -> Path:
    with tarfile.open(path, mode, format=format) as archive:
        for name, content in files.items():
            add(archive, name, content)
    return path


def make_zip(path: Path, files: dict[str, bytes] = FILES, method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, (2017, 7, 14, 2, 40, 2)), content, method)
    return path


@pytest.fixture
def file_size_limit() -> FileSizeLimit:
    """Within it, this process cannot write a file beyond so many bytes: writing fails as on a full disk."""

    @contextlib.contextmanager
    def limit(size: int) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limit
