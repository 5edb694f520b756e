"""The stages of the demonstration: a story, its pictures, its voice, the film.

Each is a class: constructed once, then called on plain values. A panel of the story is `{"sentence": …,
"caption": …}`; pictures are PNG files, speech is WAV files, the film is an MP4 file, all as bytes.
"""

from __future__ import annotations

import io
import wave
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.errors import ChainError
from trimtab_film.extras import require
from trimtab_film.model_options import options_of, prepared

Panel = dict[str, str]
SPEECH_HZ = 24_000
LEAST_SENTENCES, MOST_SENTENCES = 1, 8
PANELS = 5


class Story:
    """Writes a story of five sentences, each with the caption of its picture.

    `model`: another file of weights, or a folder of a `transformers` text model; its sentences are their own
    captions. Options: see ModelOptions; ONNX Runtime is for pictures only.
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        require("", "the story model", "torch", "safetensors")
        chosen = options_of(options)
        if chosen.runtime == "onnx":
            raise ChainError(
                "the story model does not run in ONNX Runtime",
                field="runtime",
                value="onnx",
                expected="torch or compiled",
            )
        if model is not None and Path(model).is_dir():
            self._write = _foreign_writer(model, chosen.chosen_device())
        else:
            self._write = _own_writer(Path(model) if model else None, chosen)

    def __call__(self, prompt: str, seed: int = 0) -> list[dict[str, str]]:
        """Write the story that a prompt asks for; equal prompts and seeds give equal stories."""
        return self._write(prompt, seed)


def _own_writer(path: Path | None, options: Any) -> Any:
    from trimtab_film import weights_folder
    from trimtab_film.film_prompts import read_prompt
    from trimtab_film.story_model import StorySize, StoryTransformer, Writer
    from trimtab_film.story_text import sentence_text
    from trimtab_film.weights import load_weights, read_header

    path = path or weights_folder() / "story.safetensors"
    header = read_header(path)
    model = load_weights(path, StoryTransformer(StorySize(**header["size"])))
    writer = Writer(prepared(model, options), header["words"])

    def write(prompt: str, seed: int) -> list[Panel]:
        request = read_prompt(prompt, seed)
        story = writer.write(request.asked, request.seed)
        return [
            {"sentence": sentence_text(words, request.name), "caption": scene.caption()}
            for words, scene in story
        ]

    return write


def _foreign_writer(folder: str, device: str) -> Any:
    require("any-models", "a text model of another kind", "transformers")
    import re

    from transformers import pipeline, set_seed

    generate = pipeline("text-generation", model=folder, device=device)

    def write(prompt: str, seed: int) -> list[Panel]:
        set_seed(seed)
        text = generate(prompt, max_new_tokens=160, do_sample=True, return_full_text=False)[0][
            "generated_text"
        ]
        sentences = [s.strip() for s in re.findall(r"[^.!?]+[.!?]", text)][:PANELS] or [
            text.strip() or prompt
        ]
        return [{"sentence": sentence, "caption": sentence} for sentence in sentences]

    return write


class Painter:
    """Paints the picture of a caption.

    `model`: another file of weights, or a folder of a `diffusers` text-to-image pipeline. Options: see
    ModelOptions.
    """

    def __init__(self, model: str | None = None, size_px: int = 640, steps: int = 8, **options: Any) -> None:
        require("", "the picture model", "torch", "safetensors", "PIL")
        if size_px < 128 or steps < 1:
            raise ChainError(
                "out of range",
                field="size_px, steps",
                value=(size_px, steps),
                expected="from 128 and from 1 on",
            )
        chosen = options_of(options)
        if model is not None and Path(model).is_dir():
            self._paint = _foreign_painter(model, size_px, steps, chosen.chosen_device())
        else:
            from trimtab_film.painting import SmallPainter

            self._paint = SmallPainter(Path(model) if model else None, chosen, size_px, steps).paint

    def __call__(self, panel: Mapping[str, str], seed: int = 0) -> bytes:
        """Paint one panel."""
        return self.paint([panel["caption"]], seed)[0]

    def paint(self, captions: Sequence[str], seed: int = 0) -> list[bytes]:
        """Paint several captions in one batch; a picture does not depend on the others of its batch."""
        seeds = [zlib.crc32(f"{seed} {caption}".encode()) for caption in captions]
        return [_png(picture) for picture in self._paint(captions, seeds)]


def _foreign_painter(folder: str, size_px: int, steps: int, device: str) -> Any:
    require("any-models", "a picture model of another kind", "diffusers")
    import torch
    from diffusers import AutoPipelineForText2Image

    pipe = AutoPipelineForText2Image.from_pretrained(folder, local_files_only=True).to(device)
    pipe.set_progress_bar_config(disable=True)

    def paint(captions: Sequence[str], seeds: Sequence[int]) -> list[np.ndarray]:
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        pictures = pipe(list(captions), num_inference_steps=steps, generator=generators).images
        return [np.asarray(picture.convert("RGB").resize((size_px, size_px))) for picture in pictures]

    return paint


def _png(picture: np.ndarray) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG", compress_level=1)
    return file.getvalue()


class Voice:
    """Speaks a sentence with the voice that hibari-tts carries. `model`: another ONNX file of that kind."""

    def __init__(self, model: str | None = None, threads: int = 1, speed: float = 1.0) -> None:
        require("", "the voice", "hibari", "onnxruntime")
        from hibari import Hibari

        self._speak, self._speed = Hibari(model=model, threads=threads), speed

    def __call__(self, panel: Mapping[str, str]) -> bytes:
        """Speak a panel's sentence: 24 kHz, mono, 16 bits."""
        samples = np.asarray(self._speak(panel["sentence"], speed=self._speed, seed=0), dtype=np.float32)
        return wav_of(samples)


def wav_of(samples: np.ndarray) -> bytes:
    """Write samples from -1 to 1 as a WAV file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(SPEECH_HZ)
        out.writeframes((samples.clip(-1, 1) * 32767).astype("<i2").tobytes())
    return file.getvalue()


def samples_of(wav: bytes) -> np.ndarray:
    """Read a WAV file of `wav_of` as samples from -1 to 1. Raises ChainError for another rate."""
    with wave.open(io.BytesIO(wav)) as file:
        if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (SPEECH_HZ, 1, 2):
            raise ChainError("speech of another kind", expected=f"{SPEECH_HZ} Hz, mono, 16 bits")
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32767
