"""Fetching from a real server on loopback that breaks the rules in one way at a time."""

import gzip
import hashlib
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from ipaddress import ip_address
from pathlib import Path

import pytest
from archives import FileSizeLimit, file_size_limit
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from file_server import CONTENT, Handler, Server, serve, server

from shardtrail.errors import ConfigError, SourceError, StoreUnavailable
from shardtrail.progress import Silent
from shardtrail.storage import http as fetching
from shardtrail.storage.http import changed, fetch, file_name, origin, shown

__all__ = ["file_size_limit", "server"]  # fixtures

SHA256 = "sha256:" + hashlib.sha256(CONTENT).hexdigest()
MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()


def get(server: Server, folder: Path, checksum: str = "") -> bytes:
    target = fetch(server.url, folder / "set.tar", checksum=checksum, progress=Silent())
    assert sorted(path.name for path in folder.iterdir()) == ["set.tar", "set.tar.json"]
    return target.read_bytes()


def first_cut(at: int = 600_000, **headers: str) -> Callable[[Handler, int], bool]:
    """The first answer breaks off after ``at`` bytes."""

    def quirk(handler: Handler, number: int) -> bool:
        if number == 0:
            handler.answer(200, CONTENT, cut=at, **headers)
        return number == 0

    return quirk


@pytest.mark.parametrize("checksum", ["", SHA256, MD5, SHA256.upper().replace("SHA256", "sha256")])
def test_a_file_is_fetched_once(server: Server, tmp_path: Path, checksum: str) -> None:
    """The file arrives whole; a second call transfers nothing."""
    assert get(server, tmp_path, checksum) == CONTENT
    assert get(server, tmp_path, checksum) == CONTENT
    assert server.sent == len(CONTENT)
    assert server.requests[0]["accept-encoding"] == "identity"


@pytest.mark.parametrize("etag", ['"v1"', ""])
def test_a_cut_transfer_goes_on_where_it_broke_off(server: Server, tmp_path: Path, etag: str) -> None:
    """After an early close only the missing bytes are asked for, by entity tag or else by date."""
    server.etag, server.quirk = etag, first_cut()
    assert get(server, tmp_path, SHA256) == CONTENT
    assert [(r.get("range"), r.get("if-range")) for r in server.requests] == [
        (None, None),
        ("bytes=600000-", etag or server.modified),
    ]
    assert server.sent == len(CONTENT)


def test_a_cut_chunked_body_is_not_taken_for_whole(server: Server, tmp_path: Path) -> None:
    """A body without a length that breaks off before its last chunk is fetched to its end."""

    def quirk(handler: Handler, number: int) -> bool:
        if number == 0:
            handler.answer(200, **{"Transfer-Encoding": "chunked", "Content-Length": ""})
            handler.wfile.write(b"%x\r\n" % 500_000 + CONTENT[:500_000] + b"\r\n")
            handler.close_connection = True
        return number == 0

    server.quirk = quirk
    assert get(server, tmp_path) == CONTENT
    assert server.requests[1]["range"] == "bytes=500000-"


def test_a_whole_answer_to_a_range_starts_over(server: Server, tmp_path: Path) -> None:
    """A server that ignores ranges answers 200: its bytes are not appended to what is there."""

    def quirk(handler: Handler, number: int) -> bool:
        handler.answer(200, CONTENT, cut=600_000 if number == 0 else None)
        return True

    server.quirk = quirk
    assert get(server, tmp_path) == CONTENT


@pytest.mark.parametrize("validators", ["etag", "date"])
def test_two_versions_are_never_joined(server: Server, tmp_path: Path, validators: str) -> None:
    """A file replaced by another of the same size between two requests comes as the new one alone."""
    new = CONTENT[::-1]
    if validators == "date":
        server.etag = ""

    def quirk(handler: Handler, number: int) -> bool:
        if number == 0:
            handler.answer(200, CONTENT, cut=600_000)
            server.content, server.modified = new, "Tue, 02 Jan 2024 00:00:00 GMT"
            server.etag = server.etag and '"v2"'
        return number == 0

    server.quirk = quirk
    assert get(server, tmp_path) == new


@pytest.mark.parametrize(
    "headers",
    [
        {"ETag": '"v2"'},
        {"Last-Modified": "Tue, 02 Jan 2024 00:00:00 GMT"},
        {"Content-Range": "bytes 500000-1023999/1024000"},
        {"Content-Range": "bytes 600000-1023999/1024001"},
        {"Content-Range": "bytes 600000-700000/1024000"},
        {"Content-Range": "nonsense"},
        {"Content-Range": "bytes 600000-1023999/*", "ETag": '"v2"'},
    ],
)
def test_a_piece_that_does_not_fit_is_not_appended(server: Server, tmp_path: Path, headers: dict[str, str]) -> None:
    """A 206 of another version, place or size makes the fetch start over."""

    def quirk(handler: Handler, number: int) -> bool:
        if number == 0:
            handler.answer(200, CONTENT, cut=600_000)
        elif number == 1:
            handler.send_from(600_000, **headers)
        return number < 2

    server.quirk = quirk
    assert get(server, tmp_path) == CONTENT
    assert "range" not in server.requests[2]


def test_a_shorter_piece_is_followed_by_the_next(server: Server, tmp_path: Path) -> None:
    """A server may answer with less than was asked for; the rest is asked for again."""

    def quirk(handler: Handler, number: int) -> bool:
        if number == 0:
            handler.answer(200, CONTENT, cut=600_000)
        elif number == 1:
            span = {"Content-Range": "bytes 600000-699999/1024000"}
            handler.answer(206, CONTENT[600_000:700_000], **span)
        return number < 2

    server.quirk = quirk
    assert get(server, tmp_path, SHA256) == CONTENT
    assert server.requests[2]["range"] == "bytes=700000-"


def test_an_unsatisfiable_range(server: Server, tmp_path: Path) -> None:
    """Of a body of unknown length all may be there: 416 with that total ends the fetch; another starts over."""
    for total, last in ((len(CONTENT), 2), (500, 3)):
        folder = tmp_path / str(total)
        folder.mkdir()
        server.requests.clear()

        def quirk(handler: Handler, number: int, total: int = total) -> bool:
            if number == 0:
                handler.answer(200, **{"Transfer-Encoding": "chunked", "Content-Length": ""})
                handler.wfile.write(b"%x\r\n" % len(CONTENT) + CONTENT + b"\r\n")
                handler.close_connection = True
            elif number == 1:
                handler.answer(416, **{"Content-Range": f"bytes */{total}"})
            return number < 2

        server.quirk = quirk
        assert get(server, folder) == CONTENT
        assert len(server.requests) == last


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_what_time_mends_is_tried_again(server: Server, tmp_path: Path, status: int) -> None:
    """A busy or broken server is asked again after a pause, at least as long as it wishes."""

    def quirk(handler: Handler, number: int) -> bool:
        if number < 3:
            wish = formatdate(time.time() + 1, usegmt=True) if status == 429 and number == 0 else "0"
            handler.answer(status, b"<Error><Code>SlowDown</Code></Error>", **{"Retry-After": wish})
        return number < 3

    server.quirk = quirk
    assert get(server, tmp_path) == CONTENT
    assert len(server.requests) == 4


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 501])
def test_what_time_does_not_mend_is_not_tried_again(server: Server, tmp_path: Path, status: int) -> None:
    """A refusal is final at once; the error names address and status, and no secret."""
    server.quirk = lambda handler, number: handler.answer(status) or True
    url = server.url.replace("//", "//user:passw0rd@") + "?X-Amz-Signature=s3cret#part"
    with pytest.raises(SourceError, match=f"set.tar.*{status}") as caught:
        fetch(url, tmp_path / "set.tar", progress=Silent())
    assert len(server.requests) == 1
    assert "passw0rd" not in str(caught.value) and "s3cret" not in str(caught.value)
    assert not (tmp_path / "set.tar").exists()


def test_patience_ends(server: Server, tmp_path: Path) -> None:
    """Attempts without new bytes are bounded; what was fetched stays and is gone on from."""
    server.quirk = lambda handler, number: (
        (number == 0 and handler.answer(200, CONTENT, cut=600_000)) or (number > 0 and (handler.answer(503) or True))
    )
    server.quirk = lambda handler, number: (
        (handler.answer(200, CONTENT, cut=600_000) if number == 0 else handler.answer(503)) or True
    )
    with pytest.raises(StoreUnavailable, match=r"set\.tar: status 503"):
        fetch(server.url, tmp_path / "set.tar", progress=Silent())
    assert len(server.requests) == fetching.ATTEMPTS
    assert (tmp_path / "set.tar.part").stat().st_size == 600_000

    server.quirk = lambda handler, number: False
    assert get(server, tmp_path) == CONTENT
    assert server.requests[-1]["range"] == "bytes=600000-"


def test_a_server_that_always_cuts_at_the_same_place_is_given_up(server: Server, tmp_path: Path) -> None:
    """Without ranges, a transfer that always ends at the same byte is no progress."""
    server.quirk = lambda handler, number: handler.answer(200, CONTENT, cut=96_000) or True
    with pytest.raises(StoreUnavailable):
        fetch(server.url, tmp_path / "set.tar", progress=Silent())
    assert len(server.requests) == fetching.ATTEMPTS
    assert not (tmp_path / "set.tar").exists()


def test_a_long_wish_to_wait_is_told(server: Server, tmp_path: Path) -> None:
    """A server that wants more time than there is patience ends the fetch at once, and the error says so."""
    server.quirk = lambda handler, number: handler.answer(429, **{"Retry-After": "86400"}) or True
    with pytest.raises(StoreUnavailable, match="86400 s"):
        fetch(server.url, tmp_path / "set.tar", progress=Silent())
    assert len(server.requests) == 1


def test_no_server_at_all(server: Server, tmp_path: Path) -> None:
    """A refused connection is tried again, then named as unavailable."""
    with serve() as gone:
        pass
    with pytest.raises(StoreUnavailable, match="ConnectError"):
        fetch(gone.url, tmp_path / "set.tar", progress=Silent())


def test_wrong_bytes_of_the_right_size(server: Server, tmp_path: Path) -> None:
    """A wrong checksum names both sums; the bytes stay under their part name and are verified first next time."""
    server.content = CONTENT[:-3] + b"???"
    found = hashlib.sha256(server.content).hexdigest()
    with pytest.raises(SourceError, match=found) as caught:
        fetch(server.url, tmp_path / "set.tar", checksum=SHA256, progress=Silent())
    assert SHA256 in str(caught.value)
    assert not (tmp_path / "set.tar").exists()

    sent = server.sent  # the checksum was wrong: nothing is fetched again
    assert get(server, tmp_path / ".", f"sha256:{found}") == server.content
    assert server.sent == sent


def test_wrong_bytes_are_fetched_anew(server: Server, tmp_path: Path) -> None:
    """The bytes were wrong: the next call fetches them again and is content."""
    server.content = CONTENT[:-3] + b"???"
    with pytest.raises(SourceError):
        fetch(server.url, tmp_path / "set.tar", checksum=SHA256, progress=Silent())
    server.content = CONTENT
    assert get(server, tmp_path, SHA256) == CONTENT


def test_a_spoilt_part_is_fetched_anew(server: Server, tmp_path: Path) -> None:
    """What an earlier run left, spoilt, is thrown away once the checksum tells, and the file still comes."""
    server.quirk = lambda handler, number: (
        (handler.answer(200, CONTENT, cut=600_000) if number == 0 else handler.answer(404)) or True
    )
    with pytest.raises(SourceError):
        fetch(server.url, tmp_path / "set.tar", checksum=SHA256, progress=Silent())
    with (tmp_path / "set.tar.part").open("r+b") as part:
        part.write(b"spoilt")
    server.quirk = lambda handler, number: False
    assert get(server, tmp_path, SHA256) == CONTENT


def test_a_part_of_another_address_is_not_used(server: Server, tmp_path: Path) -> None:
    """A part is gone on with only for the very address it came from."""
    server.quirk = lambda handler, number: (
        (handler.answer(200, CONTENT, cut=600_000) if number == 0 else handler.answer(404)) or True
    )
    with pytest.raises(SourceError):
        fetch(server.url, tmp_path / "set.tar", progress=Silent())
    server.quirk, server.content, server.url = lambda handler, number: False, CONTENT[::-1], server.url + "?id=2"
    assert get(server, tmp_path) == CONTENT[::-1]


def test_a_weak_tag_does_not_join_pieces(server: Server, tmp_path: Path) -> None:
    """With nothing but a weak entity tag a cut transfer starts over, and an unchanged file is still recognised."""
    server.etag, server.modified, server.quirk = 'W/"v1"', "", first_cut()
    assert get(server, tmp_path) == CONTENT
    assert "range" not in server.requests[1]
    assert get(server, tmp_path) == CONTENT
    assert server.sent == 600_000 + len(CONTENT)


def test_compressed_transfer_is_decoded(server: Server, tmp_path: Path) -> None:
    """A server that compresses although asked not to does no harm: the file's own bytes are kept and verified."""
    body = gzip.compress(CONTENT)
    server.etag = 'W/"v1-gzip"'
    server.quirk = lambda handler, number: (
        handler.answer(200, body, cut=len(body) // 2 if number == 0 else None, **{"Content-Encoding": "gzip"}) or True
    )
    assert get(server, tmp_path, SHA256) == CONTENT


def test_the_encoding_of_a_gz_file_is_its_own(server: Server, tmp_path: Path) -> None:
    """``x.tar.gz`` labelled as gzip transfer is kept as it is: its published checksum is of those bytes."""
    body = gzip.compress(CONTENT)
    server.quirk = lambda handler, number: handler.answer(200, body, **{"Content-Encoding": "gzip"}) or True
    checksum = "sha1:" + hashlib.sha1(body).hexdigest()
    assert fetch(server.url, tmp_path / "x.tar.gz", checksum=checksum, progress=Silent()).read_bytes() == body


def test_not_modified_is_no_file(server: Server, tmp_path: Path) -> None:
    """A 304 that nobody asked for is no empty file."""
    server.quirk = lambda handler, number: handler.answer(304) or True
    with pytest.raises(SourceError, match="304"):
        fetch(server.url, tmp_path / "set.tar", progress=Silent())


def test_a_folder_that_cannot_be_made(server: Server, tmp_path: Path) -> None:
    """A target that cannot be written is the disk's fault, named as such."""
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match=r"set\.tar\.part cannot be written"):
        fetch(server.url, tmp_path / "file" / "set.tar", progress=Silent())


def test_a_web_page_is_no_archive(server: Server, tmp_path: Path) -> None:
    """A notice in HTML with status 200 is refused, its type and first bytes are shown, nothing is kept."""
    page = b"<html><h1>Quota exceeded</h1>" * 70
    server.quirk = lambda handler, number: handler.answer(200, page, **{"Content-Type": "text/html; x=y"}) or True
    with pytest.raises(SourceError, match=r"text/html.*Quota exceeded"):
        fetch(server.url, tmp_path / "set.tar", progress=Silent())
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_fit_the_disk_is_not_begun(server: Server, tmp_path: Path) -> None:
    """A length beyond the free disk is refused before the first byte."""
    server.quirk = lambda handler, number: handler.answer(200, cut=0, **{"Content-Length": str(1 << 60)}) or True
    with pytest.raises(SourceError, match=f"free.*{1 << 60}"):
        fetch(server.url, tmp_path / "set.tar", progress=Silent())


def test_a_write_that_fails_keeps_the_part(server: Server, tmp_path: Path, file_size_limit: FileSizeLimit) -> None:
    """When the disk takes no more the error names the file, and the next call goes on from what was written."""
    with file_size_limit(300_000), pytest.raises(SourceError, match=r"set\.tar\.part cannot be written"):
        fetch(server.url, tmp_path / "set.tar", progress=Silent())
    assert get(server, tmp_path, SHA256) == CONTENT
    assert server.requests[-1]["range"] == "bytes=300000-"


def test_a_changed_file_replaces_the_old(server: Server, tmp_path: Path) -> None:
    """News on the server are fetched; while that fails, the old file stays whole under its name."""
    get(server, tmp_path)
    server.content, server.etag = CONTENT[::-1], '"v2"'
    known = origin(tmp_path / "set.tar")
    assert known is not None and changed(server.url, known)

    server.quirk = lambda handler, number: (
        (handler.answer(404) if "range" in handler.headers else handler.answer(200, server.content, cut=600_000))
        or True
    )
    with pytest.raises(SourceError):
        fetch(server.url, tmp_path / "set.tar", progress=Silent())
    assert (tmp_path / "set.tar").read_bytes() == CONTENT

    server.quirk = lambda handler, number: False
    assert get(server, tmp_path) == CONTENT[::-1]


def test_redirects_are_followed(server: Server, tmp_path: Path) -> None:
    """A redirect leads on, ranges included; a circle of them does not."""

    def quirk(handler: Handler, number: int) -> bool:
        if handler.path == "/data/set.tar":
            handler.answer(302, Location="/elsewhere")
        elif number == 1:
            handler.answer(200, CONTENT, cut=600_000)
        return handler.path == "/data/set.tar" or number == 1

    server.quirk = quirk
    assert get(server, tmp_path) == CONTENT
    assert server.requests[-1]["range"] == "bytes=600000-"
    server.quirk = lambda handler, number: handler.answer(302, Location="/data/set.tar") or True
    with pytest.raises(SourceError, match="redirects"):
        fetch(server.url, tmp_path / "other", progress=Silent())


def write_certificate(key: Path, certificate: Path) -> None:
    """A self-signed certificate for 127.0.0.1, good for two days."""
    secret = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(secret, hashes.SHA256())
    )
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key.write_bytes(secret.private_bytes(serialization.Encoding.PEM, pkcs8, plain))
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))


def test_https(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An untrusted certificate is final; over a trusted one files come, but no redirect to plain http is followed."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    write_certificate(key, certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with serve(context) as safe:
        with pytest.raises(SourceError, match=r"secure connection.*certificate"):
            fetch(safe.url, tmp_path / "set.tar", progress=Silent())
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert fetch(safe.url, tmp_path / "set.tar", progress=Silent()).read_bytes() == CONTENT
        safe.quirk = lambda handler, number: handler.answer(301, Location=server.url) or True
        with pytest.raises(SourceError, match="secure connection"):  # https spoken to a server of http
            fetch(server.url.replace("http", "https", 1), tmp_path / "other", progress=Silent())
        with pytest.raises(SourceError, match="unprotected"):
            fetch(safe.url, tmp_path / "other", progress=Silent())
    assert server.requests == []


def test_a_killed_fetch_goes_on(server: Server, tmp_path: Path) -> None:
    """kill -9 in the middle leaves a part under its own name; the next call asks for the rest only."""
    half, release = threading.Event(), threading.Event()

    def quirk(handler: Handler, number: int) -> bool:
        if number == 0:
            handler.answer(200, **{"Content-Length": str(len(CONTENT))})
            handler.wfile.write(CONTENT[: len(CONTENT) // 2])
            half.set()
            release.wait(60)
            handler.close_connection = True
        return number == 0

    server.quirk = quirk
    code = (
        "import sys; from pathlib import Path; from shardtrail.progress import Silent\n"
        "from shardtrail.storage import http; http._BLOCK = 4096\n"
        "http.fetch(sys.argv[1], Path(sys.argv[2]), progress=Silent())"
    )
    child = subprocess.Popen([sys.executable, "-c", code, server.url, tmp_path / "set.tar"])
    part = tmp_path / "set.tar.part"
    assert half.wait(60)
    deadline = time.monotonic() + 60
    while not (part.exists() and part.stat().st_size > 100_000) and time.monotonic() < deadline:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    release.set()
    there = part.stat().st_size
    assert 100_000 < there <= len(CONTENT) // 2
    assert not (tmp_path / "set.tar").exists()

    assert get(server, tmp_path, SHA256) == CONTENT
    assert server.requests[1]["range"] == f"bytes={there}-"


@pytest.fixture
def netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's file of passwords."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".netrc").touch(0o600)
    return tmp_path / ".netrc"


def test_passwords_come_from_netrc(server: Server, tmp_path: Path, netrc: Path) -> None:
    """A host gets its own user and password; one that it redirects to, or that has no entry, gets none."""
    netrc.write_text("machine 127.0.0.1 login me password passw0rd\nmachine other.example login x password y\n")
    with serve() as other:
        elsewhere = other.url.replace("127.0.0.1", "localhost")
        server.quirk = lambda handler, number: handler.answer(302, Location=elsewhere) or True
        get(server, tmp_path / "one")
        assert server.requests[0]["authorization"] == f"Basic {b64encode(b'me:passw0rd').decode()}"
        assert other.requests and "authorization" not in other.requests[0]
        fetch(elsewhere, tmp_path / "two", progress=Silent())
        assert "authorization" not in other.requests[-1]


def test_a_bad_netrc_is_told_without_its_content(server: Server, tmp_path: Path, netrc: Path) -> None:
    """A ~/.netrc that cannot be read is a fault of the configuration, never quoted."""
    netrc.write_text("machine 127.0.0.1 login me\npassword two passw0rd\n")
    with pytest.raises(ConfigError, match=r"~/\.netrc cannot be read \(at or before line 3\)") as caught:
        get(server, tmp_path)
    assert "passw0rd" not in str(caught.value)
    netrc.write_text("machine 127.0.0.1 login me password passw0rd\n")
    netrc.chmod(0o644)
    with pytest.raises(ConfigError, match=r"~/\.netrc cannot be read; .* only yourself"):
        get(server, tmp_path)
    assert not server.requests


def test_names_and_addresses(tmp_path: Path) -> None:
    """A file's name is taken from the address and cannot lead elsewhere; messages show no secret."""
    assert file_name("https://x/records/1/files/BigEarthNet-S2.tar.zst?download=1") == "BigEarthNet-S2.tar.zst"
    assert file_name("https://x/a%2F..%2F..%2Fevil.zip") == "a_.._.._evil.zip"
    assert file_name("https://x/..") == file_name("https://x/") == "download"
    assert len(os.fsencode(file_name(f"https://x/{'日' * 300}.zip"))) <= 200
    assert shown("https://user:pw@host:8/a.zip?sig=1#2") == "https://host:8/a.zip?…"
    with pytest.raises(ConfigError):
        file_name("http://[::1/x")
    for url in ("http://", "http://[::1/x", "http://host:port/x"):
        with pytest.raises(ConfigError):
            fetch(url, tmp_path / "x", progress=Silent())
