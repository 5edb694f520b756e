"""Options of the model stages, missing extras, and other models than the small ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from trimtab_film.extras import require
from trimtab_film.model_options import ModelOptions, options_of

from trimtab.errors import ChainError, MissingExtra


def test_a_missing_package_names_its_extra() -> None:
    with pytest.raises(MissingExtra, match=r"the film needs no_such_package; .*\./examples/film,"):
        require("", "the film", "io", "no_such_package")
    with pytest.raises(MissingExtra, match=r"pip install '\./examples/film\[pages\]'"):
        require("pages", "the film", "no_such_package")
    require("", "the film", "io")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"numbers": "quarter"}, "numbers.*quarter.*one of single, half, int8"),
        ({"runtime": "jax"}, "runtime.*jax.*one of torch, compiled, onnx"),
        ({"device": "tpu"}, "device.*tpu.*one of auto, cpu, cuda"),
        ({"threads": 0}, "threads.*0.*from 1 on"),
        ({"runtime": "onnx", "numbers": "half"}, "numbers.*half.*single or int8"),
        ({"numbers": "int8", "device": "cuda"}, "numbers.*int8.*device: cpu"),
        ({"precision": "half"}, "precision.*one of numbers, runtime, device, threads"),
    ],
)
def test_options_that_do_not_go_are_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(ChainError, match=message):
        options_of(given)


def test_options_default_to_single_precision_on_one_thread() -> None:
    assert options_of({}) == ModelOptions("single", "torch", "auto", 1)


def test_cuda_is_asked_for_only_where_it_is() -> None:
    torch = pytest.importorskip("torch", reason="needs the extra models")
    if torch.cuda.is_available():
        assert ModelOptions(device="auto").chosen_device() == "cuda"
        return
    assert ModelOptions(device="auto").chosen_device() == "cpu"
    with pytest.raises(ChainError, match="no CUDA device"):
        ModelOptions(device="cuda").chosen_device()


def test_weights_that_are_none_are_named(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs the extra models")
    from trimtab_film.film_stages import Painter, Story

    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"nothing")
    for stage in (Painter, Story):
        with pytest.raises(ChainError, match=r"broken\.safetensors: cannot be read as weights"):
            stage(model=str(broken))
        with pytest.raises(ChainError, match=r"absent\.safetensors: cannot be read as weights"):
            stage(model=str(tmp_path / "absent.safetensors"))


def test_the_story_model_refuses_onnx() -> None:
    pytest.importorskip("torch", reason="needs the extra models")
    from trimtab_film.film_stages import Story

    with pytest.raises(ChainError, match=r"runtime.*onnx.*torch or compiled"):
        Story(runtime="onnx")


def test_the_shipped_weights_are_small() -> None:
    from trimtab_film import weights_folder

    files = list(weights_folder().glob("*.safetensors"))
    assert {file.name for file in files} == {"pictures.safetensors", "story.safetensors"}
    assert sum(file.stat().st_size for file in files) < 20 * 2**20
