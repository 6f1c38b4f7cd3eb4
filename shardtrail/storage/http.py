"""Fetch a file over HTTP: resumed where it broke off, verified before it gets its name.

    fetch("https://zenodo.org/…/BigEarthNet-S2.tar.zst", target, checksum="md5:…", progress=progress)

The bytes go to ``<target>.part``; beside it ``<target>.part.json`` says which version of the file they are of, so that
bytes of two versions are never joined. RFC 9110 (sections 13.1.5, 14 and 15.5.17) has the rules of ranges.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import logging
import netrc
import os
import random
import re
import shutil
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

import httpx

from shardtrail.errors import ConfigError, PipelineError, SourceError, StoreUnavailable
from shardtrail.files import sync_folder, to_json, write_atomic
from shardtrail.progress import Progress
from shardtrail.storage.local import file_digest

# At level INFO these log whole addresses, and with them any password or signature.
logging.getLogger("httpx").setLevel(logging.WARNING)
logging.getLogger("httpcore").setLevel(logging.WARNING)

ATTEMPTS = 8
"""Attempts in a row that bring no new bytes, before giving up."""
PATIENCE_SECONDS = 900.0
"""Time without new bytes, before giving up."""
FIRST_PAUSE_SECONDS = 1.0
"""Pause after the first failure; it doubles up to a minute, each time drawn from half to one and a half of it."""

_TIMEOUT = httpx.Timeout(60.0, connect=20.0)
_TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_BLOCK = 1 << 20
_HINTS = {
    401: "it wants a user and password; put them into ~/.netrc",
    403: "access is refused, or a signed address has expired",
    404: "there is no such file; correct the address",
    410: "the file was removed; find its new address",
}


@dataclass(frozen=True, slots=True)
class Origin:
    """One version of a file, as its server described it.

    Attributes:
        address: sha256 of the address, which may itself hold a secret.
        etag: entity tag, quotes (and ``W/``) included; empty if none.
        modified: ``Last-Modified``; empty if none.
        length: bytes; None if not told, or told of a compressed transfer.
        ranges: whether a broken transfer of it may be continued.
    """

    address: str
    etag: str
    modified: str
    length: int | None
    ranges: bool = True

    @property
    def validator(self) -> str:
        """What ``If-Range`` may hold: a strong entity tag, or else the date."""
        return self.etag if self.etag and not self.etag.startswith("W/") else self.modified

    def differs(self, other: Origin) -> bool:
        """Whether anything that both versions state is not the same."""
        pairs = ((self.etag, other.etag), (self.modified, other.modified), (self.length, other.length))
        return any(mine != theirs for mine, theirs in pairs if mine not in ("", None) and theirs not in ("", None))


def fetch(url: str, target: Path, *, checksum: str = "", progress: Progress) -> Path:
    """Bring the file at ``url`` to ``target``; nothing is transferred when it is there and unchanged.

    Args:
        url: http(s) address; user and password come from ``~/.netrc``, as basic authentication.
        target: appears only with its whole, verified content.
        checksum: published ``md5:…``, ``sha1:…``, ``sha256:…`` or ``sha512:…``; empty: only the length is checked.
        progress: gets one bar over the bytes of each transfer.

    Returns:
        ``target``.

    Raises:
        SourceError: time does not mend it: refused, absent, a web page instead of a file, wrong checksum, full disk.
        StoreUnavailable: no answer, or none of use, in ``ATTEMPTS`` attempts or ``PATIENCE_SECONDS``. What was
            transferred is kept and the next call goes on from there.
    """
    part = target.with_name(f"{target.name}.part")
    with _disk_errors(part):
        return _fetch(url, target, part, checksum.lower(), progress)


def _fetch(url: str, target: Path, part: Path, checksum: str, progress: Progress) -> Path:
    algorithm = checksum.partition(":")[0]
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        if checksum:
            if file_digest(target, algorithm, progress) == checksum:
                return target
        elif (known := origin(target)) and not changed(url, known):
            return target
    started_over = False
    while True:
        in_one_go = _complete(url, part, progress)
        if not checksum or (found := file_digest(part, algorithm, progress)) == checksum:
            break
        if in_one_go or started_over:
            raise SourceError(
                f"{shown(url)} has the checksum {found}, but params.yaml (download.checksum) expects {checksum}. "
                "Correct the checksum if it is wrong: what was fetched is kept and verified first; "
                "otherwise the next run fetches the file again"
            )
        # A remnant of an earlier run, or pieced together: the fault may be ours.
        _discard(part)
        started_over = True
    with part.open("rb") as file:
        os.fsync(file.fileno())
    # The old file's description must not outlive it.
    _origin_file(target).unlink(missing_ok=True)
    os.replace(part, target)
    os.replace(_origin_file(part), _origin_file(target))
    sync_folder(target.parent)
    return target


def origin(file: Path) -> Origin | None:
    """What the server said of a file that ``fetch`` brought; None if that is not known."""
    try:
        return Origin(**json.loads(_origin_file(file).read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def changed(url: str, known: Origin) -> bool:
    """Ask whether the file at ``url`` is another than ``known``; its content is not transferred.

    A server that states neither an entity tag nor a date gives no answer: then it may have changed.

    Raises:
        SourceError: as ``fetch``.
        StoreUnavailable: as ``fetch``.
    """
    if known.address != _address(url):
        return True
    conditions = {"If-None-Match": known.etag} if known.etag else {}
    if known.modified and not known.etag:
        conditions["If-Modified-Since"] = known.modified
    patience = _Patience(url)
    with _client(url) as client:
        while True:
            try:
                with _answer(client, url, conditions) as response:
                    if response.status_code == 304:
                        return False
                    now = _describe(url, response, encoded=False)
                    told = (known.etag and now.etag) or (known.modified and now.modified)
                    return not told or known.differs(now)
            except _Again as reason:
                patience.pause(reason)


def file_name(url: str) -> str:
    """The name to keep a fetched file under: the last part of the address's path, made safe."""
    name = unquote(_split(url).path.rstrip("/").rpartition("/")[2])
    name = re.sub(r"[^\w.+@=,-]", "_", name).lstrip(".")
    return name.encode()[-200:].decode(errors="ignore") or "download"


def shown(url: str) -> str:
    """An address for messages: without user, password, fragment and the query's content, which may hold secrets."""
    parts = _split(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}{'?…' if parts.query else ''}"


@contextlib.contextmanager
def _disk_errors(part: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, PipelineError):
            raise
        what = "the disk is full; free some space" if error.errno == errno.ENOSPC else error.strerror
        raise SourceError(f"{part} cannot be written: {what}. What was fetched is kept; then run again") from error


class _Again(Exception):
    """A later attempt may do better. ``after``: seconds that the server asked to wait."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


class _Patience:
    """How long to go on without progress."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._best = 0
        self.refresh()

    def refresh(self) -> None:
        self._failures = 0
        self._since = time.monotonic()

    def reached(self, size: int) -> None:
        """``size`` bytes are there: progress, if that is a block more than ever before.

        Otherwise a server that cuts every transfer at the same place would be asked for ever.
        """
        if size >= self._best + _BLOCK:
            self._best = size
            self.refresh()

    def pause(self, reason: _Again) -> None:
        """Wait before the next attempt, or raise ``StoreUnavailable``."""
        self._failures += 1
        wait = min(60.0, FIRST_PAUSE_SECONDS * 2 ** (self._failures - 1)) * random.uniform(0.5, 1.5)
        wait = max(wait, reason.after or 0)
        spent = time.monotonic() - self._since
        if self._failures >= ATTEMPTS or spent + wait > PATIENCE_SECONDS:
            asked = f", which asks to wait {reason.after:.0f} s" if reason.after else ""
            raise StoreUnavailable(
                f"{shown(self._url)}: {reason}{asked}; gave up after {self._failures} attempts without progress. "
                "What was fetched is kept; run again later to go on from there"
            ) from reason
        time.sleep(wait)


def _complete(url: str, part: Path, progress: Progress) -> bool:
    """Attempt until the part is whole. Returns whether one answer of this call brought all of it."""
    patience = _Patience(url)
    with _client(url) as client:
        while True:
            try:
                return _attempt(client, url, part, patience, progress)
            except _Again as reason:
                patience.pause(reason)


def _attempt(client: httpx.Client, url: str, part: Path, patience: _Patience, progress: Progress) -> bool:
    """One request that makes the part whole, going on from what is there. Returns whether nothing was there.

    Raises:
        _Again: it is not whole yet.
    """
    known = _resumable(url, part)
    offset = part.stat().st_size if known else 0
    if known and offset == known.length:
        return False
    headers = {"Range": f"bytes={offset}-", "If-Range": known.validator} if known and offset else {}
    with _answer(client, url, headers) as response:
        encoded = _is_encoded(response, part)
        now = _describe(url, response, encoded)
        length = now.length
        if response.status_code == 416:
            if offset and length == offset:
                return False
            _discard(part)
            raise _Again(f"the server has nothing from byte {offset} on")
        if response.status_code == 206:
            length = length or (known.length if known else None)
            if known is None or length is None or encoded or known.differs(now) or not _starts_at(offset, response):
                _discard(part)
                raise _Again("the server sent a piece that does not continue what was fetched")
        else:
            _refuse_web_page(url, response, part)
            _discard(part)
            write_atomic(_origin_file(part), to_json(dataclasses.asdict(now)))
            offset = 0
        size = _append(response, part, offset, length, encoded, patience, progress)
    if length is not None and size != length:
        if size > length:
            _discard(part)
        raise _Again(f"the transfer ended at byte {size} of {length}")
    return offset == 0


def _append(
    response: httpx.Response,
    part: Path,
    offset: int,
    length: int | None,
    encoded: bool,
    patience: _Patience,
    progress: Progress,
) -> int:
    """Write an answer's body to the end of the part, which has ``offset`` bytes. Returns the bytes there are then."""
    rest = None if length is None else length - offset
    free = shutil.disk_usage(part.parent).free
    if rest is not None and rest > free:
        raise SourceError(f"{part.parent} has {free} bytes free, but {rest} are to come; free some and run again")
    progress.start(f"fetch {part.stem}" + (f" from byte {offset}" if offset else ""), rest, "bytes")
    size = offset
    # No block size given: httpx would drop what it has of a block when the connection breaks.
    blocks = response.iter_bytes() if encoded else response.iter_raw()
    with part.open("ab", buffering=_BLOCK) as file:
        for block in blocks:
            file.write(block)
            size += len(block)
            patience.reached(size)
            progress.advance(len(block))
    progress.finish(f"{size} bytes in {part.parent}")
    return size


def _resumable(url: str, part: Path) -> Origin | None:
    """The version that the part is of, if the transfer of that version can go on; None: start over."""
    known = origin(part)
    if known is None or known.address != _address(url) or not part.exists():
        return None
    size = part.stat().st_size
    if known.length is not None and size >= known.length:
        return known if size == known.length else None
    return known if known.ranges and known.validator else None


def _describe(url: str, response: httpx.Response, encoded: bool) -> Origin:
    """The version of the file that an answer is about."""
    headers = response.headers
    whole = re.fullmatch(r"bytes .*/(\d+)", headers.get("content-range", ""))
    length = whole[1] if whole else headers.get("content-length") if response.status_code == 200 else None
    return Origin(
        address=_address(url),
        etag=headers.get("etag", ""),
        modified=headers.get("last-modified", ""),
        length=int(length) if length is not None and not encoded else None,
        ranges=not encoded,
    )


def _starts_at(offset: int, response: httpx.Response) -> bool:
    """Whether a 206 answer holds what it says, and that goes on at ``offset``."""
    piece = re.match(r"bytes (\d+)-(\d+)/", response.headers.get("content-range", ""))
    if piece is None or not offset or int(piece[1]) != offset:
        return False
    length = int(piece[2]) - offset + 1
    return int(response.headers.get("content-length", length)) == length


def _is_encoded(response: httpx.Response, part: Path) -> bool:
    """Whether the body is to be decoded, although it was asked for as it is.

    Servers that label ``x.tar.gz`` with ``Content-Encoding: gzip`` describe the file they keep, not the transfer.
    """
    encoding = response.headers.get("content-encoding", "identity").lower()
    if encoding in ("gzip", "x-gzip") and part.stem.lower().endswith((".gz", ".tgz")):
        return False
    return encoding not in ("", "identity")


def _refuse_web_page(url: str, response: httpx.Response, part: Path) -> None:
    """A login, quota or error page comes with status 200, too."""
    content_type = response.headers.get("content-type", "")
    if content_type.startswith("text/html") and not part.stem.endswith((".html", ".htm")):
        begin = next(response.iter_bytes(200), b"")
        raise SourceError(
            f"{shown(url)} sent a web page ({content_type}) instead of a file; it begins {begin!r}. "
            "Open the address in a browser: it may want a login, or be the page about the file"
        )


@contextlib.contextmanager
def _answer(client: httpx.Client, url: str, headers: dict[str, str]) -> Iterator[httpx.Response]:
    """A streamed answer of status 200, 206, 304 or 416; all that fails, its body too, as ``_Again`` or final."""
    try:
        with client.stream("GET", url, headers=headers) as response:
            _check_status(url, response)
            yield response
    except (httpx.TooManyRedirects, httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        raise SourceError(f"{shown(url)} cannot be followed: {error}; correct the address") from error
    except (httpx.TransportError, httpx.DecodingError) as error:
        if isinstance(error, httpx.ConnectError) and _is_final(_root_cause(error)):
            raise SourceError(
                f"{shown(url)}: no secure connection ({error}); check the address and this machine's clock, "
                "or name the file of your own certificate authority in SSL_CERT_FILE"
            ) from error
        raise _Again(f"{type(error).__name__}: {error}") from error


def _check_status(url: str, response: httpx.Response) -> None:
    status = response.status_code
    asked = response.request.headers
    if status in (200, 206, 416) or (status == 304 and ("if-none-match" in asked or "if-modified-since" in asked)):
        return
    if status in _TRANSIENT_STATUS:
        raise _Again(f"status {status}", _retry_after(response))
    hint = _HINTS.get(status, "the server does not accept the request; correct the address")
    raise SourceError(f"{shown(url)} answered with status {status} {response.reason_phrase}: {hint}")


def _retry_after(response: httpx.Response) -> float | None:
    """The header ``Retry-After``, seconds or a date, in seconds from now."""
    value = response.headers.get("retry-after", "")
    if value.isdigit():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


def _client(url: str) -> httpx.Client:
    try:
        host = httpx.URL(url).host
    except httpx.InvalidURL as error:
        raise ConfigError(f"source: the address cannot be read: {error}") from error
    if not host:
        raise ConfigError(f"source: {shown(url)} names no server")
    return httpx.Client(
        auth=_netrc(),
        follow_redirects=True,
        max_redirects=10,
        timeout=_TIMEOUT,
        headers={"Accept-Encoding": "identity", "User-Agent": "shardtrail"},
        event_hooks={"response": [_refuse_downgrade]},
    )


def _netrc() -> httpx.Auth | None:
    """User and password by host, where there is a ``~/.netrc``."""
    try:
        return httpx.NetRCAuth()
    except FileNotFoundError:
        return None
    except (netrc.NetrcParseError, UnicodeError, OSError) as error:
        # The error's own text may quote the password.
        line = getattr(error, "lineno", None)
        where = f" (at or before line {line})" if line else ""
        raise ConfigError(f"~/.netrc cannot be read{where}; correct it, and let only yourself read it") from None


def _refuse_downgrade(response: httpx.Response) -> None:
    """Do not follow a redirect from https to http: the rest could be anyone's."""
    if response.has_redirect_location:
        to = response.url.join(response.headers["location"])
        if response.url.scheme == "https" and to.scheme != "https":
            raise SourceError(
                f"{shown(str(response.url))} redirects to the unprotected {shown(str(to))}; "
                "give that address itself if you trust it, with a checksum"
            )


def _is_final(error: BaseException) -> bool:
    """Whether a handshake failed for what the two sides are, not because the connection broke."""
    return isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)


def _root_cause(error: BaseException) -> BaseException:
    while inner := error.__cause__ or error.__context__:
        error = inner
    return error


def _address(url: str) -> str:
    """What tells addresses apart: all but user, password and fragment, hashed."""
    parts = _split(url)
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl()
    return hashlib.sha256(bare.encode()).hexdigest()


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"source: the address cannot be read: {error}") from error


def _origin_file(file: Path) -> Path:
    return file.with_name(f"{file.name}.json")


def _discard(part: Path) -> None:
    """Remove a part. The description goes last, for it must never be that of other bytes."""
    part.unlink(missing_ok=True)
    _origin_file(part).unlink(missing_ok=True)
