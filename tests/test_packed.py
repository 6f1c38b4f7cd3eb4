"""Files held in little memory are the same files."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtrail.packed import columns, pack_files
from shardtrail.samples import SourceFile

folders = st.sampled_from(["", "a/", "a/b/", "ä/ü/"])
names = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=8)
files = st.lists(
    st.builds(
        SourceFile,
        role=st.sampled_from(["image", "mask", "B02"]),
        path=st.builds(str.__add__, folders, names),
        size=st.integers(0, 2**62),
    ),
    max_size=6,
)


@given(files, st.booleans())
def test_packing_loses_nothing(some, hashed):
    """Packed files, in order and with their digests, equal the objects, as do slices, columns and pickled ones."""
    expected = tuple(SourceFile(f.role, f.path, f.size, f"{n:032x}" if hashed else "") for n, f in enumerate(some))
    packed = pack_files(expected)
    assert packed == expected and hash(packed) == hash(expected) and len(packed) == len(expected)
    assert packed[1:3] == expected[1:3] and list(reversed(packed)) == list(reversed(expected))
    assert pickle.loads(pickle.dumps(packed)) == expected
    assert list(map(list, columns(packed))) == list(map(list, columns(expected)))
    assert pack_files(packed) is packed


@given(files)
def test_digests_are_added_and_counted(some):
    """Digests are given to all files at once; too few, or what is no md5, is refused."""
    md5s = [f"{number:032x}" for number in range(len(some))]
    assert [file.md5 for file in pack_files(some).with_md5s(md5s)] == md5s
    for wrong in ([*md5s, "0" * 32], ["no md5"] * len(some) or ["x"]):
        with pytest.raises(ValueError):
            pack_files(some).with_md5s(wrong)


def test_stats_are_left_out():
    """Stats vouch for the moment of a scan and are not kept; of digests that only some files have, none is."""
    some = [SourceFile("a", "x/1", 1, "0" * 32, (1, 2, 3, 4)), SourceFile("b", "x/2", 2)]
    assert pack_files(some) == (SourceFile("a", "x/1", 1), SourceFile("b", "x/2", 2))
