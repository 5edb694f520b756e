"""Weights in files: what is written is read again, by others too; hostile files are errors with a name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.domain.artifact import NO_ARTIFACT, Artifact
from trimtab.errors import UsageError

ARRAYS = {"b": np.arange(6.0).reshape(2, 3), "a": np.float32([1.5, -2.0]), "n": np.array([7])}


def written(folder: Path, content: bytes) -> str:
    path = folder / "w.safetensors"
    path.write_bytes(content)
    return str(path)


def as_file(header: Any, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    made = Artifact("w", ARRAYS, {"k": "v ü"})
    read = Artifact.read(written(tmp_path, made.content()))
    assert read == made
    assert read.meta == {"k": "v ü"}
    assert read.name == "w"
    for key, array in ARRAYS.items():
        np.testing.assert_array_equal(read.arrays[key], array, strict=True)
        with pytest.raises(ValueError, match="read-only"):
            read.arrays[key][0] = 1
    assert repr(read) == f"w@{made.sha256[:12]}"
    assert read != Artifact("w", {**ARRAYS, "n": np.array([8])}, {"k": "v ü"})
    assert repr(NO_ARTIFACT) == "none"


def test_the_published_package_reads_and_writes_the_same(tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.numpy")
    made = Artifact("w", ARRAYS, {"k": "v"})
    found = package.load_file(written(tmp_path, made.content()))
    assert found.keys() == ARRAYS.keys()
    for key, array in ARRAYS.items():
        np.testing.assert_array_equal(found[key], array, strict=True)
    package.save_file(ARRAYS, tmp_path / "theirs.safetensors", metadata={"k": "v"})
    theirs = Artifact.read(str(tmp_path / "theirs.safetensors"))
    assert theirs.arrays.keys() == made.arrays.keys()
    assert theirs.meta == {"k": "v"}


F8 = {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is no safetensors file"),
        (b"\xff" * 8, "is no safetensors file"),
        ((1 << 40).to_bytes(8, "little") + b"{}", "is no safetensors file"),
        ((2).to_bytes(8, "little") + b"{]", "header that is no JSON"),
        ((2).to_bytes(8, "little") + b"\xff\xff", "header that is no JSON"),
        ((20_000).to_bytes(8, "little") + b"[" * 20_000, "header that is no JSON"),
        ((15).to_bytes(8, "little") + b'{"a":1,"a":[2]}', "a key comes twice"),
        (as_file([1]), "no table of arrays"),
        (as_file({"__metadata__": {"policy": "learned-residual"}}), "has no arrays"),
        (as_file({"__metadata__": {"k": 1}}), "__metadata__: is not text"),
        (as_file({"a": 3}), "a: has a type that is not read"),
        (as_file({"a": {**F8, "dtype": "BF16"}}, bytes(8)), "'BF16'.*expected F64, F32, I64"),
        (as_file({"a": {**F8, "shape": [-1]}}, bytes(8)), "a: has no shape or no place"),
        (as_file({"a": {**F8, "shape": [1] * 99}}, bytes(8)), "a: has no shape or no place"),
        (as_file({"a": {**F8, "shape": [True]}}, bytes(8)), "a: has no shape or no place"),
        (as_file({"a": {**F8, "data_offsets": [0]}}, bytes(8)), "a: has no shape or no place"),
        (as_file({"a": {**F8, "data_offsets": [8, 0]}}, bytes(8)), "a: has a place that does not fit"),
        (as_file({"a": {**F8, "data_offsets": [8, 16]}}, bytes(8)), "a: has a place that does not fit"),
        (as_file({"a": {**F8, "shape": [1 << 28] * 8}}, bytes(8)), "a: has a place that does not fit"),
        (as_file({"a": F8, "b": F8}, bytes(8)), "overlap"),
        (as_file({"a": F8}, bytes(9)), "overlap, or bytes of none"),
        (as_file({"a": F8}, np.float64(math.nan).tobytes()), "a: has numbers that are not finite"),
        (as_file({"a": F8}, np.float64(math.inf).tobytes()), "a: has numbers that are not finite"),
    ],
)
def test_a_hostile_file_is_refused_by_name(content: bytes, problem: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        Artifact.read(written(tmp_path, content), "p.artifact")
    assert "w.safetensors" in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_file_that_is_not_there_or_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "no", tmp_path):
        with pytest.raises(UsageError, match=r"p\.artifact: can't be read"):
            Artifact.read(str(path), "p.artifact")


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    content = bytearray(Artifact("w", ARRAYS, {"k": "v"}).content())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(content[: data.draw(st.integers(0, len(content)))])
    for each in (bytes(content), cut):
        try:
            Artifact.read(written(tmp_path_factory.getbasetemp(), each))
        except UsageError:
            continue
