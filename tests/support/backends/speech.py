"""The speech backend: spoken text as WAV, seconds by its length; transcriptions, seconds by the audio's.

Transcriptions are streamed too, word by word.
"""

from __future__ import annotations

import array
import asyncio
import io
import math
import sys
import wave
from typing import Any

from aiohttp import web

from support.backends.answers import Refused, Stream, lead_s, read_json
from support.backends.chat import WORDS, check_model
from support.backends.forms import sse
from support.backends.options import Options
from support.backends.service import Service
from support.backends.uploads import is_true, read_form

RATE = 8_000  # samples a second, 16 bits each
SPOKEN_S = 0.06  # of audio per character
BYTES_PER_S = 32_000  # of audio whose length can't be read from a WAV head
WORDS_PER_S = 2.5
PIECE = 8_192  # bytes of a chunk
TOKENS_PER_S = 10  # of audio, as streams tell their usage


class Speech:
    """Handlers of the speech backend."""

    def __init__(self, options: Options, service: Service) -> None:
        self._options, self._service = options, service

    def routes(self) -> list[web.RouteDef]:
        """Its paths."""
        return [
            web.post("/v1/audio/speech", self._speak),
            web.post("/v1/audio/transcriptions", self._listen),
            web.post("/v1/audio/translations", self._listen),
        ]

    async def _speak(self, request: web.Request) -> web.StreamResponse:
        asked = await read_json(request)
        check_model(self._options, str(asked.get("model", "")))
        text = str(asked.get("input", ""))
        await self._service.work(self._options.speech_s * len(text) + lead_s(request))
        is_raw = asked.get("response_format") == "pcm"
        audio = _samples(len(text) * SPOKEN_S) if is_raw else wav(len(text) * SPOKEN_S)
        content_type = "audio/pcm" if is_raw else "audio/wav"
        if asked.get("stream_format") is None:
            return web.Response(body=audio, content_type=content_type)
        stream = Stream(request, content_type)
        await stream.open()
        for begin in range(0, len(audio), PIECE):
            await stream.write(audio[begin : begin + PIECE])
        return await stream.end()

    async def _listen(self, request: web.Request) -> web.StreamResponse:
        form = await read_form(request)
        check_model(self._options, str(form.fields.get("model", "")))
        if "file" not in form.files:
            raise Refused(400, "there is no file", "missing_file")
        audio_s = duration_s(form.files["file"])
        words = [WORDS[i % len(WORDS)] for i in range(max(1, round(audio_s * WORDS_PER_S)))]
        if is_true(form.fields.get("stream")):
            return await self._listen_aloud(request, audio_s, words)
        await self._service.work(self._options.listen_s * audio_s + lead_s(request))
        text = " ".join(words)
        if form.fields.get("response_format") == "text":
            return web.Response(text=text + "\n")
        answer: dict[str, Any] = {"text": text, "usage": {"type": "duration", "seconds": math.ceil(audio_s)}}
        if form.fields.get("response_format") == "verbose_json":
            answer |= {"task": "transcribe", "language": "english", "duration": audio_s, "segments": []}
        return web.json_response(answer)

    async def _listen_aloud(
        self, request: web.Request, audio_s: float, words: list[str]
    ) -> web.StreamResponse:
        """The words at even distances, at last the whole text."""
        stream = Stream(request)
        await stream.open()
        async with self._service.slot():
            work_s = self._options.base_s + self._options.listen_s * audio_s + lead_s(request)
            word_s = self._service.paced_s(work_s) / len(words)
            for number, word in enumerate(words):
                await asyncio.sleep(word_s)
                name = "transcript.text.delta"
                await stream.write(sse({"type": name, "delta": f" {word}" if number else word}, name))
        heard, name = math.ceil(audio_s * TOKENS_PER_S), "transcript.text.done"
        usage = {"type": "tokens", "input_tokens": heard, "output_tokens": len(words)}
        usage |= {"total_tokens": heard + len(words)}
        await stream.write(sse({"type": name, "text": " ".join(words), "usage": usage}, name))
        return await stream.end()


def _samples(seconds: float) -> bytes:
    """A tone of 220 Hz as signed 16-bit numbers, little-endian."""
    step = 2 * math.pi * 220 / RATE
    period = array.array("h", (round(8_000 * math.sin(step * i)) for i in range(RATE)))
    if sys.byteorder == "big":
        period.byteswap()
    count = round(seconds * RATE) * 2
    whole = period.tobytes() * (count // (RATE * 2) + 1)
    return whole[:count]


def wav(seconds: float) -> bytes:
    """A WAV file of so many seconds."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(RATE)
        writer.writeframes(_samples(seconds))
    return file.getvalue()


def duration_s(audio: bytes) -> float:
    """Seconds of an audio file: from its WAV head, else by its size."""
    try:
        with wave.open(io.BytesIO(audio), "rb") as reader:
            return reader.getnframes() / reader.getframerate()
    except (wave.Error, EOFError, ZeroDivisionError):
        return len(audio) / BYTES_PER_S
