"""A seeded number between 0 and 1 for a text: the same on every machine, whatever else there is."""

from __future__ import annotations

import hashlib


def draw(purpose: str, seed: int, text: str) -> float:
    """A number in [0, 1) that depends on its arguments alone.

    Args:
        purpose: keeps draws for different ends apart, such as ``split`` and ``select``.
        seed: from the parameters.
        text: what it is drawn for, such as a sample id.
    """
    value = hashlib.blake2b(f"{purpose}\0{seed}\0{text}".encode(), digest_size=8).digest()
    return (int.from_bytes(value, "little") >> 11) / 2**53
