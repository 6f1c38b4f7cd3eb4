"""Unpacking: every kind gives the same tree, nothing leaves the target, damage is named and leaves nothing."""

import gzip
import stat
import tarfile
import tempfile
import zipfile
from pathlib import Path

import pytest
import zstandard
from archives import FILES, MTIME, FileSizeLimit, add, file_size_limit, make_tar, make_zip
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardtrail.errors import SourceError
from shardtrail.progress import Silent
from shardtrail.storage.archive import unpack

__all__ = ["file_size_limit"]  # a fixture


def make(path: Path, kind: str) -> Path:
    if kind == "zip":
        return make_zip(path)
    if kind in ("zst", "pzstd"):
        plain = make_tar(path.with_name("plain.tar")).read_bytes()
        compress = zstandard.ZstdCompressor().compress
        frames = compress(plain[:50_000]) + compress(plain[50_000:])
        skipped = b"\x50\x2a\x4d\x18\x04\0\0\0abcd" if kind == "pzstd" else b""
        path.write_bytes(skipped + frames)
        return path
    if kind == "two-gzips":
        plain = make_tar(path.with_name("plain.tar")).read_bytes()
        path.write_bytes(gzip.compress(plain[:50_000]) + gzip.compress(plain[50_000:]))
        return path
    formats = {"gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
    return make_tar(path, "w" if kind in formats else f"w:{kind}", formats.get(kind, tarfile.PAX_FORMAT))


def tree(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def refused(archive: Path, *words: str) -> None:
    """The archive is refused, with its name and these words, and leaves no trace beside itself."""
    before = sorted(archive.parent.rglob("*"))
    with pytest.raises(SourceError) as caught:
        unpack(archive, archive.parent / "target", Silent())
    for word in (archive.name, *words):
        assert word in str(caught.value)
    assert sorted(archive.parent.rglob("*")) == before


@pytest.mark.parametrize("kind", ["pax", "gnu", "gz", "bz2", "xz", "zst", "pzstd", "two-gzips", "zip"])
def test_every_kind_gives_the_same_tree(tmp_path: Path, kind: str) -> None:
    """Names, bytes and times come out as they went in, whatever the file is called; modes are ours."""
    unpack(make(tmp_path / "any.name", kind), tmp_path / "target", Silent())

    assert tree(tmp_path / "target") == FILES
    one = (tmp_path / "target/set/a/one.tif").stat()
    assert abs(one.st_mtime_ns - MTIME * 10**9) <= 10**9  # a zip keeps even seconds
    assert stat.S_IMODE(one.st_mode) & 0o7133 == 0


def test_unpacking_twice_gives_equal_times(tmp_path: Path) -> None:
    """An archive gives every file the same time each time, so a stat cache has a chance."""
    archive = make_tar(tmp_path / "a.tar")
    for name in ("first", "second"):
        unpack(archive, tmp_path / name, Silent())
    times = [
        {p.name: p.stat().st_mtime_ns for p in (tmp_path / n).rglob("*") if p.is_file()} for n in ("first", "second")
    ]
    assert times[0] == times[1]


def test_links_inside_are_kept(tmp_path: Path) -> None:
    """A relative link to a member and a hard link to an earlier file work; nothing was written through them."""
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        add(archive, "x/link", type=tarfile.SYMTYPE, linkname="../y/file")
        add(archive, "y/file", b"content")
        add(archive, "x/hard", type=tarfile.LNKTYPE, linkname="y/file")
    unpack(tmp_path / "a.tar", tmp_path / "target", Silent())
    assert tree(tmp_path / "target") == dict.fromkeys(["x/link", "y/file", "x/hard"], b"content")
    assert (tmp_path / "target/x/link").readlink() == Path("../y/file")


UNSAFE = {
    "absolute": [("/tmp/evil", {})],
    "parent": [("a/../../evil", {})],
    "drive": [("C:/evil", {})],
    "backslash": [("..\\evil", {})],
    "link out": [("l", {"type": tarfile.SYMTYPE, "linkname": "../../etc"})],
    "absolute link": [("l", {"type": tarfile.SYMTYPE, "linkname": "/etc"})],
    "through a link": [("l", {"type": tarfile.SYMTYPE, "linkname": "d"}), ("d/x", {}), ("l/evil", {})],
    "link over a link": [
        ("d/up", {"type": tarfile.SYMTYPE, "linkname": ".."}),
        ("out", {"type": tarfile.SYMTYPE, "linkname": "d/up/.."}),
    ],
    "hard link out": [("h", {"type": tarfile.LNKTYPE, "linkname": "../../etc/passwd"})],
    "hard link to later": [("h", {"type": tarfile.LNKTYPE, "linkname": "later"}), ("later", {})],
    "hard link to a link": [
        ("l", {"type": tarfile.SYMTYPE, "linkname": "f"}),
        ("h", {"type": tarfile.LNKTYPE, "linkname": "l"}),
    ],
    "device": [("dev", {"type": tarfile.CHRTYPE})],
    "pipe": [("pipe", {"type": tarfile.FIFOTYPE})],
    "twice": [("f", {}), ("./f", {})],
    "file as folder": [("d", {}), ("d/f", {})],
    "not UTF-8": [("caf\udce9", {})],
    "no name": [("./", {"type": tarfile.REGTYPE})],
}


@pytest.mark.parametrize("case", UNSAFE)
def test_unsafe_members_are_refused_by_name(tmp_path: Path, case: str) -> None:
    """A member that could write or read outside, or that names no plain file, ends the unpacking."""
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        add(archive, "good", b"good")
        for name, fields in UNSAFE[case]:
            add(archive, name, **fields)
    refused(tmp_path / "a.tar", "member")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(
        st.lists(st.sampled_from(["..", ".", "a", "b", "", "l", "C:", "x\\y"]), min_size=1, max_size=5).map("/".join),
        min_size=1,
        max_size=6,
    ),
    links=st.lists(st.sampled_from(["..", "a", "a/..", "../..", "/", "l/..", "."]), max_size=3),
)
def test_no_archive_writes_outside(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], links: list[str]
) -> None:
    """Whatever names and links an archive holds, all that is written lies below the target."""
    place = tmp_path_factory.mktemp("any")
    (place / "out").mkdir()
    with tarfile.open(place / "a.tar", "w") as archive:
        for number, link in enumerate(links):
            add(archive, "l" if number == 0 else f"a/l{number}", type=tarfile.SYMTYPE, linkname=link)
        for name in names:
            add(archive, name, b"x")
    target = place / "out" / "target"
    try:
        unpack(place / "a.tar", target, Silent())
    except SourceError:
        assert not target.exists()
    else:
        for path in target.rglob("*"):
            assert path.resolve().is_relative_to(target.resolve())
    assert set(place.iterdir()) == {place / "a.tar", place / "out"}
    assert set((place / "out").iterdir()) <= {target}


@pytest.mark.parametrize("kind", ["pax", "gz", "bz2", "xz", "zst", "zip"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.95])
def test_a_truncated_archive_is_damaged(tmp_path: Path, kind: str, share: float) -> None:
    """Wherever it was cut, an archive is refused by name and no half tree stays."""
    archive = make(tmp_path / "cut", kind)
    (tmp_path / "plain.tar").unlink(missing_ok=True)
    whole = archive.read_bytes()
    archive.write_bytes(whole[: int(len(whole) * share)])
    refused(archive)


def test_a_tar_cut_between_members_is_damaged(tmp_path: Path) -> None:
    """A tar cut exactly behind a member has only lost its end mark; that alone is noticed."""
    archive = make_tar(tmp_path / "a.tar", files={"a": b"1" * 512, "b": b"2" * 512})
    archive.write_bytes(archive.read_bytes()[:2048])
    refused(archive, "end", "'b'")


def test_a_damaged_header_is_not_the_end(tmp_path: Path) -> None:
    """A flipped byte in the second header is an error, not a shorter archive."""
    archive = make_tar(tmp_path / "a.tar", files={"a": b"1" * 512, "b": b"2" * 512})
    content = bytearray(archive.read_bytes())
    content[1024 + 5] ^= 0xFF
    archive.write_bytes(content)
    refused(archive, "header", "'a'")


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(["pax", "gnu", "zip"]),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4),
)
def test_damage_anywhere_is_a_named_error(kind: str, flips: list[tuple[float, int]]) -> None:
    """Whichever bytes are flipped: a whole tree with all files, or an error that names the archive and no tree."""
    with tempfile.TemporaryDirectory() as folder:
        archive, target = Path(folder) / "a", Path(folder) / "target"
        files = {"set/one": b"1" * 600, "set/" + "n" * 150: b"2", "three": b""}
        if kind == "zip":
            make_zip(archive, files)
        else:
            make_tar(archive, format=tarfile.GNU_FORMAT if kind == "gnu" else tarfile.PAX_FORMAT, files=files)
        content = bytearray(archive.read_bytes())
        for place, flip in flips:
            content[int(place * len(content))] ^= flip
        archive.write_bytes(content)
        try:
            unpack(archive, target, Silent())
        except SourceError as error:
            assert str(archive) in str(error)
            assert not target.exists()
        else:
            assert len(tree(target)) == len(files)


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_huge_header_is_not_read(tmp_path: Path, format: int) -> None:
    """A name or attribute of megabytes, which would be read into memory as a whole, is refused."""
    make_tar(tmp_path / "a.tar", format=format, files={"good": b"", "n" * (2 << 20): b""})
    refused(tmp_path / "a.tar", "a header of 2097", "'good'")


def test_a_chain_of_headers_is_refused(tmp_path: Path) -> None:
    """Headers for headers without end are an error of the archive, not of the program."""
    record = tarfile.TarInfo("x").create_pax_global_header({"comment": "x"})
    make_tar(tmp_path / "a.tar", files={"good": b""})
    (tmp_path / "a.tar").write_bytes((tmp_path / "a.tar").read_bytes()[:512] + record * 2000 + b"\0" * 1024)
    refused(tmp_path / "a.tar", "'good'")


def test_joined_archives_are_refused(tmp_path: Path) -> None:
    """Two tars in one file would lose the second; that is said."""
    archive = make_tar(tmp_path / "a.tar", files={"a": b"1"})
    archive.write_bytes(archive.read_bytes() * 2)
    refused(archive, "more follows")


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "zst"])
def test_a_flipped_byte_is_noticed(tmp_path: Path, kind: str) -> None:
    """Compressed streams carry checksums, and they are looked at."""
    archive = tmp_path / f"a.tar.{kind}"
    plain = make_tar(tmp_path / "plain").read_bytes()
    (tmp_path / "plain").unlink()
    if kind == "zst":
        content = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(plain))
    else:
        make(archive, kind)
        content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 0x10
    archive.write_bytes(content)
    refused(archive)


def test_a_wrong_crc_in_a_zip_names_the_member(tmp_path: Path) -> None:
    """A zip member whose bytes do not fit its CRC is named."""
    archive = make_zip(tmp_path / "a.zip", {"set/good": b"g", "set/bad.tif": b"b" * 100}, zipfile.ZIP_STORED)
    content = archive.read_bytes()
    archive.write_bytes(content.replace(b"b" * 100, b"b" * 99 + b"c"))
    refused(archive, "set/bad.tif", "CRC")


def test_an_encrypted_zip_is_refused(tmp_path: Path) -> None:
    """An encrypted member is named and the user told what to do."""
    archive = make_zip(tmp_path / "a.zip", {"secret.tif": b"s"})
    content = bytearray(archive.read_bytes())
    content[6] |= 1  # the flag in the local header
    content[content.index(b"PK\1\2") + 8] |= 1  # and in the list of contents
    archive.write_bytes(content)
    refused(archive, "secret.tif", "encrypted")


@pytest.mark.parametrize("name", ["d/" * 2500 + "f", "d/" * 100 + "f", ("x" * 200 + "/") * 6 + "f"])
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_paths_too_deep_to_handle_are_refused(tmp_path: Path, name: str, kind: str) -> None:
    """A member more than 100 parts deep or 1,024 bytes long is refused in a few words, and leaves nothing."""
    make = make_tar if kind == "tar" else make_zip
    archive = make(tmp_path / "a.archive", files={"good": b"1", name: b"1"})
    refused(archive, name[:80], "parts")


@pytest.mark.parametrize("name", ["", "../evil", "/evil", "a\\..\\evil", "C:evil"])
def test_unsafe_zip_members_are_refused(tmp_path: Path, name: str) -> None:
    """Zips are held to the same rules."""
    refused(make_zip(tmp_path / "a.zip", {"good": b"", name: b""}), "member")


def test_a_zip_that_hides_members_is_refused(tmp_path: Path) -> None:
    """A damaged length in a zip's list, which makes the rest of it a comment, is not taken for a shorter list."""
    archive = make_zip(tmp_path / "a.zip", {"one": b"1", "two": b"2", "three": b"3"})
    content = bytearray(archive.read_bytes())
    first = content.index(b"PK\1\2")
    rest = content.index(b"PK\5\6") - content.index(b"PK\1\2", first + 1)
    content[first + 32 : first + 34] = rest.to_bytes(2, "little")
    archive.write_bytes(content)
    refused(archive, "1 files, 3 were announced")


def test_a_zip_link_is_held_to_the_rules(tmp_path: Path) -> None:
    """A symbolic link in a zip is kept inside and refused outside."""
    for target, good in (("file", True), ("../file", False)):
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.writestr("file", b"content")
            link = zipfile.ZipInfo("link")
            link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
            archive.writestr(link, target)
        if good:
            unpack(tmp_path / "a.zip", tmp_path / "good", Silent())
            assert (tmp_path / "good/link").read_bytes() == b"content"
        else:
            refused(tmp_path / "a.zip", "'link'", "outside")


def test_zip_names_without_the_utf8_flag(tmp_path: Path) -> None:
    """UTF-8 names come out right although the archiver forgot the flag; cp437 stays what it says."""
    for raw, expected in (("日本.jpg".encode(), "日本.jpg"), ("café".encode("cp437"), "café")):
        archive = make_zip(tmp_path / "a.zip", {"x" * len(raw): b"1"})
        archive.write_bytes(archive.read_bytes().replace(b"x" * len(raw), raw))
        unpack(archive, tmp_path / expected, Silent())
        assert tree(tmp_path / expected) == {expected: b"1"}


def test_what_does_not_fit_the_disk_is_refused_at_once(tmp_path: Path) -> None:
    """A member larger than the free disk is refused by its announced size, before anything is written."""
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        member = tarfile.TarInfo("huge")
        member.size = 1 << 60
        archive.fileobj.write(member.tobuf(tarfile.GNU_FORMAT))
    refused(tmp_path / "a.tar", "huge", str(1 << 60), "disk")


def test_a_write_that_fails_names_the_member(tmp_path: Path, file_size_limit: FileSizeLimit) -> None:
    """When the disk takes no more, the member is named and what was unpacked is removed."""
    archive = make_tar(tmp_path / "a.tar")
    with file_size_limit(50_000):
        refused(archive, "set/a/one.tif", "cannot be written")


@pytest.mark.parametrize("content", [b"", b"<html><title>Quota exceeded</title></html>" * 50, b"\0" * 10240])
def test_what_is_no_archive_is_shown(tmp_path: Path, content: bytes) -> None:
    """A web page, an empty file and an archive without members are refused; the page's first bytes are quoted."""
    (tmp_path / "a.tar").write_bytes(content)
    refused(tmp_path / "a.tar", *(["Quota"] if b"Quota" in content else []))


def test_a_folder_with_content_is_left_alone(tmp_path: Path) -> None:
    """Unpacking goes to a new folder only: what lies in another stays, whatever happens."""
    (tmp_path / "mine").write_bytes(b"precious")
    with pytest.raises(SourceError, match="not empty"):
        unpack(make_tar(tmp_path / "a.tar"), tmp_path, Silent())
    assert (tmp_path / "mine").read_bytes() == b"precious"
