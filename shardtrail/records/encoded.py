"""Images that records keep encoded, byte for byte: what a file begins with tells its format.

Nothing is decoded while shards are written. Whether an image is whole is for the layout's ``check``.
"""

from __future__ import annotations

from shardtrail.samples import Feature

_BEGINNINGS = {
    "jpeg": (b"\xff\xd8\xff",),
    "png": (b"\x89PNG\r\n\x1a\n",),
    "gif": (b"GIF87a", b"GIF89a"),
    "bmp": (b"BM",),
}


def image_format(content: bytes | memoryview) -> str:
    """``jpeg``, ``png``, ``gif`` or ``bmp`` by an image's first bytes; empty for anything else."""
    head = bytes(content[:8])
    return next((name for name, beginnings in _BEGINNINGS.items() if head.startswith(beginnings)), "")


def image_fault(feature: Feature, content: bytes | memoryview) -> str:
    """Why bytes are no image of the feature's format, as far as their beginning tells; empty if they may be one."""
    found = image_format(content)
    if found == feature.format or (found and feature.format == "encoded"):
        return ""
    expected = "JPEG, PNG, GIF or BMP" if feature.format == "encoded" else feature.format.upper()
    return f"is {found.upper() or 'no image'} ({len(content)} bytes, {bytes(content[:8])!r} …), expected {expected}"
