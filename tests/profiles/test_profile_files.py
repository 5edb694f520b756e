from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trimtab.errors import UsageError
from trimtab.profiles import LatencyProfile, load_profile
from trimtab.profiles.profile_files import profile_text

TEXT = """gpu: A1
model: small
precision: bf16
source: measured
memory_gib: 24
weights_gib: 15
kv_bytes_per_token: 131072
dense_s: {1: 0.01, 3: 0.03}
sequence_s: {1: 0.001}
attention_s: {1: 0.001, 2: 0.003}
context_s: {2: 2.0e-06, 4: 1.0e-06}
mixed_token_s: 1.0e-05
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "my.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_tables_are_linear_between_points_and_beyond(tmp_path: Path) -> None:
    tables = load_profile(written(tmp_path, TEXT)).tables(batch_max=5, token_budget=6)
    np.testing.assert_allclose(tables.dense_s, [0.01, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06])
    np.testing.assert_allclose(tables.sequence_s, np.full(6, 0.001))
    np.testing.assert_allclose(tables.attention_s, [0.001, 0.001, 0.003, 0.005, 0.007, 0.009])
    np.testing.assert_allclose(tables.context_s, np.array([2, 2, 2, 1.5, 1, 1]) * 1e-6)


def test_tables_go_to_the_batch_where_it_is_larger_than_the_budget(tmp_path: Path) -> None:
    tables = load_profile(written(tmp_path, TEXT)).tables(batch_max=9, token_budget=6)
    assert len(tables.dense_s) == len(tables.context_s) == 10


def test_kv_capacity(tmp_path: Path) -> None:
    profile = load_profile(written(tmp_path, TEXT))
    assert profile.kv_capacity == int((0.9 * 24 - 15) * 2**30 / 131072)
    assert profile.model_copy(update={"kv_tokens": 7}).kv_capacity == 7


def test_written_and_read_again(tmp_path: Path) -> None:
    profile = load_profile(written(tmp_path, TEXT))
    assert load_profile(written(tmp_path, profile_text(profile))) == profile
    assert profile_text(profile).count("\n") == len(TEXT.splitlines())


def test_constructed() -> None:
    with pytest.raises(ValueError, match="ascending"):
        LatencyProfile.model_validate({"dense_s": {3: 1.0, 2: 1.0}})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("gpu: A1\n", "", r"my\.yaml: gpu: missing; expected a value"),
        (
            "3: 0.03",
            "3: -0.03",
            r"dense_s: cannot be used \(got -0\.03\); expected greater than or equal to 0",
        ),
        ("{1: 0.001}", "{}", "sequence_s: cannot be used .*one point at least, ascending, from 1 on"),
        ("{1: 0.001}", "{0: 0.001}", "sequence_s: cannot be used .*ascending, from 1 on"),
        ("source: measured", "source: guess", "source: cannot be used .*'measured' or 'roofline'"),
        ("mixed_token_s", "mixed_tokens_s", "mixed_tokens_s: unknown key"),
        ("memory_gib: 24", "memory_gib: .nan", "memory_gib"),
    ],
)
def test_errors_name_file_field_and_value(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(UsageError, match=message):
        load_profile(written(tmp_path, TEXT.replace(old, new)))


def test_no_such_profile(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no such profile .*expected a built-in profile or a YAML file"):
        load_profile("nothing")
    with pytest.raises(UsageError, match=r"gone\.yaml: cannot be read"):
        load_profile(tmp_path / "gone.yaml")
