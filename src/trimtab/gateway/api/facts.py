"""Converts a request's document, from JSON or a form, to Facts.

Only the model is validated. Other invalid values (a negative number, a text instead of a number) count as not
stated: the backend refuses them with its own error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from trimtab.gateway.api.prompts import Prompt
from trimtab.gateway.api.units import (
    BYTES_PER_TOKEN,
    COMPLETION_MAX_TOKENS,
    DEFAULT_MEGAPIXELS,
    MAX_STATED,
    SPEECH_BYTES_PER_S,
    VIDEO_FRAMES_PER_S,
)
from trimtab.gateway.model import Facts, Kind, Refusal

Document = dict[str, Any]

_MAX_MODEL_CHARS: Final = 256
_SIZE: Final = re.compile(r"([0-9]{1,5})[xX]([0-9]{1,5})")


def facts_of(kind: Kind, document: Document) -> Facts | Refusal:
    """The facts of a request to an endpoint of this kind, or a refusal if it names no model."""
    model = document.get("model")
    if type(model) is not str or not 0 < len(model) <= _MAX_MODEL_CHARS:
        return _without_model(kind, document, model)
    return _READERS.get(kind._value_, _relay)(model, document)  # hashing an Enum is a Python call


def _without_model(kind: Kind, document: Document, model: Any) -> Facts | Refusal:
    if kind is Kind.RELAY:
        return _relay("", document)
    if model is None or model == "":
        return Refusal(
            400, "missing_required_parameter", "Missing required parameter: 'model'.", param="model"
        )
    received = f"{len(model)} characters" if type(model) is str else type(model).__name__
    message = f"Invalid 'model': expected the name of a model, got {received}."
    return Refusal(400, "invalid_type", message, param="model")


def number(value: Any) -> float:
    """A stated number above 0, possibly as text (forms and the video API); 0 for anything else."""
    if type(value) is int or type(value) is float:
        return min(value, MAX_STATED) if value > 0 else 0.0
    if type(value) is str and len(value) <= 16:
        try:
            return number(float(value))
        except ValueError:
            return 0.0
    return 0.0


def _count(value: Any) -> int:
    return max(int(number(value)), 1) if value is not None else 1


def _text(value: Any) -> str:
    return value if type(value) is str else ""


def _first(document: Document, *names: str) -> float:
    """The first of these numbers that is stated."""
    for name in names:
        if name in document:
            stated = number(document[name])
            if stated:
                return stated
    return 0.0


def _session(document: Document) -> str:
    conversation = document.get("conversation")
    if type(conversation) is dict:
        conversation = conversation.get("id")
    return _text(conversation) or _text(document.get("prompt_cache_key"))


def wants_usage(document: Document) -> bool:
    """Whether the client itself requests its stream's usage."""
    options = document.get("stream_options")
    return type(options) is dict and options.get("include_usage") is True


def _chat(model: str, document: Document) -> Facts:
    prompt = Prompt()
    if "tools" in document:
        prompt.add_tree(document["tools"])
    prompt.add_messages(document.get("messages"))
    tokens, blocks = prompt.finish(model)
    facts = Facts(
        model,
        stream=document.get("stream") is True,
        prompt_tokens=tokens,
        max_tokens=_first(document, "max_completion_tokens", "max_tokens"),
        prefix_blocks=blocks,
    )
    if "n" in document:
        facts.answers = _count(document["n"])
    if "prompt_cache_key" in document:
        facts.session = _text(document["prompt_cache_key"])
    if "stream_options" in document:
        facts.wants_usage = wants_usage(document)
    return facts


def _completion(model: str, document: Document) -> Facts:
    prompt = Prompt()
    prompts = document.get("prompt")
    prompt.add(prompts)
    tokens, blocks = prompt.finish(model)
    return Facts(
        model,
        stream=document.get("stream") is True,
        prompt_tokens=tokens,
        max_tokens=_first(document, "max_tokens") or COMPLETION_MAX_TOKENS,
        answers=_n_prompts(prompts) * max(_count(document.get("n")), _count(document.get("best_of"))),
        session=_text(document.get("prompt_cache_key")),
        wants_usage=wants_usage(document),
        prefix_blocks=blocks,
    )


def _n_prompts(prompts: Any) -> int:
    """The number of prompts: a list of texts or of token lists holds several, a list of tokens is one."""
    return len(prompts) if type(prompts) is list and prompts and type(prompts[0]) is not int else 1


def _response(model: str, document: Document) -> Facts:
    prompt = Prompt()
    if "tools" in document:
        prompt.add_tree(document["tools"])
    prompt.add(document.get("instructions"))
    prompt.add_messages(document.get("input"))
    tokens, blocks = prompt.finish(model)
    return Facts(
        model,
        stream=document.get("stream") is True,
        prompt_tokens=tokens,
        max_tokens=_first(document, "max_output_tokens"),
        session=_session(document),
        previous_response_id=_text(document.get("previous_response_id")),
        wants_usage=True,  # its streams always contain the usage
        prefix_blocks=blocks,
    )


def _messages(model: str, document: Document) -> Facts:
    prompt = Prompt()
    if "tools" in document:
        prompt.add_tree(document["tools"])
    prompt.add(document.get("system"))
    prompt.add_messages(document.get("messages"))
    tokens, blocks = prompt.finish(model)
    return Facts(
        model,
        stream=document.get("stream") is True,
        prompt_tokens=tokens,
        max_tokens=_first(document, "max_tokens"),
        wants_usage=True,  # its streams always contain the usage
        prefix_blocks=blocks,
    )


def _count_tokens(model: str, document: Document) -> Facts:
    facts = _messages(model, document)
    return Facts(model, prompt_tokens=facts.prompt_tokens)


_RERANK_KEYS: Final = ("query", "documents", "text_1", "text_2", "queries", "items", "data_1", "data_2")


def _embedding(model: str, document: Document) -> Facts:
    prompt = Prompt()
    prompt.add(document.get("input"))
    prompt.add_messages(document.get("messages"))
    return Facts(model, prompt_tokens=prompt.finish(model)[0])


def _rerank(model: str, document: Document) -> Facts:
    prompt = Prompt()
    for key in _RERANK_KEYS:
        prompt.add(document.get(key))
    return Facts(model, prompt_tokens=prompt.finish(model)[0])


def _image(model: str, document: Document) -> Facts:
    return Facts(
        model,
        stream=document.get("stream") in (True, "true"),
        prompt_tokens=_tokens(document.get("prompt")),
        images=_count(document.get("n")),
        steps=int(_first(document, "num_inference_steps", "steps")),
        megapixels=_megapixels(document),
    )


def _tokens(text: Any) -> float:
    return len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN if type(text) is str else 0.0


def _megapixels(document: Document) -> float:
    found = _SIZE.fullmatch(_text(document.get("size")))
    if found:
        width, height = float(found[1]), float(found[2])
    else:
        width, height = number(document.get("width")), number(document.get("height"))
    return width * height / 1e6 or DEFAULT_MEGAPIXELS


def _speech(model: str, document: Document) -> Facts:
    text = document.get("input")
    length_s = _tokens(text) * BYTES_PER_TOKEN / SPEECH_BYTES_PER_S
    return Facts(
        model,
        stream=document.get("stream") is True or document.get("stream_format") == "sse",
        prompt_tokens=_tokens(text),
        audio_s=length_s / (number(document.get("speed")) or 1.0),
    )


def _transcription(model: str, document: Document) -> Facts:
    """The facts without the sound's duration, which `parse_body` adds."""
    return Facts(
        model, stream=document.get("stream") in (True, "true"), prompt_tokens=_tokens(document.get("prompt"))
    )


def _video(model: str, document: Document) -> Facts:
    length_s = _first(document, "seconds", "duration")
    if not length_s:
        length_s = number(document.get("num_frames")) / (_first(document, "fps") or VIDEO_FRAMES_PER_S)
    return Facts(
        model,
        prompt_tokens=_tokens(document.get("prompt")),
        images=_count(document.get("n")),
        steps=int(_first(document, "num_inference_steps", "steps")),
        megapixels=_megapixels(document),
        video_s=length_s,
    )


def _relay(model: str, document: Document) -> Facts:
    """The facts of a relayed path: fields of chats and completions, as far as they are present."""
    prompt = Prompt()
    for key in ("messages", "prompt", "input", "text"):
        prompt.add(document.get(key))
    return Facts(
        model,
        stream=document.get("stream") is True,
        prompt_tokens=prompt.finish(model)[0],
        max_tokens=_first(document, "max_tokens"),
        wants_usage=True,  # the gateway must not change its stream
    )


_READERS: Final[dict[str, Callable[[str, Document], Facts]]] = {
    Kind.CHAT._value_: _chat,
    Kind.COMPLETION._value_: _completion,
    Kind.RESPONSE._value_: _response,
    Kind.MESSAGES._value_: _messages,
    Kind.COUNT_TOKENS._value_: _count_tokens,
    Kind.EMBEDDING._value_: _embedding,
    Kind.RERANK._value_: _rerank,
    Kind.IMAGE._value_: _image,
    Kind.SPEECH._value_: _speech,
    Kind.TRANSCRIPTION._value_: _transcription,
    Kind.VIDEO._value_: _video,
}
