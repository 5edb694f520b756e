"""How texts are asked for and answered: chat, completions and responses of OpenAI, messages of Anthropic.

Each form reads a body into `Asked`, writes a whole answer, and writes a stream: its beginning, each piece of
text, its end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request for text wants."""

    model: str
    prompt: str
    max_tokens: int | None
    stream: bool
    wants_usage: bool  # a chunk with the usage at the stream's end
    ignore_eos: bool  # write exactly max_tokens


@dataclass(slots=True)
class Written:
    """An answer: what was written so far and what it cost."""

    id: str
    model: str
    prompt_tokens: int
    cached_tokens: int = 0
    output_tokens: int = 0
    text: str = ""
    is_cut: bool = False  # at max_tokens
    wants_usage: bool = False


class Form(Protocol):
    """A dialect's way to ask for text and to answer."""

    id_prefix: str

    def read(self, body: dict[str, Any]) -> Asked: ...
    def whole(self, written: Written) -> dict[str, Any]: ...
    def begin(self, written: Written) -> Iterator[bytes]: ...
    def piece(self, written: Written, text: str) -> bytes: ...
    def end(self, written: Written) -> Iterator[bytes]: ...


def _text(value: object) -> str:
    """All text within messages, content parts or plain strings, in order."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(_text, value))
    if isinstance(value, dict):
        return "".join(_text(value.get(name)) for name in ("role", "content", "text", "input"))
    return ""


def _asked(body: dict[str, Any], prompt: str, max_tokens: object) -> Asked:
    options = body.get("stream_options")
    return Asked(
        model=str(body.get("model", "")),
        prompt=prompt,
        max_tokens=max_tokens if isinstance(max_tokens, int) and max_tokens > 0 else None,
        stream=body.get("stream") is True,
        wants_usage=isinstance(options, dict) and options.get("include_usage") is True,
        ignore_eos=body.get("ignore_eos") is True,
    )


def sse(data: dict[str, Any], event: str = "") -> bytes:
    """One server-sent event."""
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


DONE = b"data: [DONE]\n\n"


def _openai_usage(written: Written) -> dict[str, Any]:
    return {
        "prompt_tokens": written.prompt_tokens,
        "completion_tokens": written.output_tokens,
        "total_tokens": written.prompt_tokens + written.output_tokens,
        "prompt_tokens_details": {"cached_tokens": written.cached_tokens},
    }


class _Choices:
    """What chat and completions share: an answer of choices, and the usage in a chunk without any."""

    object_name = ""
    chunk_name = ""

    def _answer(self, written: Written, name: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        created = int(time.time())
        return {
            "id": written.id,
            "object": name,
            "created": created,
            "model": written.model,
            "choices": choices,
        }

    def _chunk(self, written: Written, choice: dict[str, Any] | None) -> bytes:
        choices = [] if choice is None else [{"index": 0, "finish_reason": None, **choice}]
        answer = self._answer(written, self.chunk_name, choices)
        if written.wants_usage:
            answer["usage"] = None if choices else _openai_usage(written)
        return sse(answer)

    def _last(self, written: Written, choice: dict[str, Any]) -> Iterator[bytes]:
        yield self._chunk(written, {**choice, "finish_reason": _finish(written)})
        if written.wants_usage:
            yield self._chunk(written, None)
        yield DONE

    def _whole(self, written: Written, choice: dict[str, Any]) -> dict[str, Any]:
        choice = {"index": 0, "finish_reason": _finish(written), **choice}
        return {**self._answer(written, self.object_name, [choice]), "usage": _openai_usage(written)}


def _finish(written: Written) -> str:
    return "length" if written.is_cut else "stop"


class ChatForm(_Choices):
    """`/v1/chat/completions`."""

    id_prefix = "chatcmpl-"
    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    def read(self, body: dict[str, Any]) -> Asked:
        """A body of messages."""
        limit = body.get("max_completion_tokens", body.get("max_tokens"))
        return _asked(body, _text(body.get("messages")), limit)

    def whole(self, written: Written) -> dict[str, Any]:
        """The answer in one piece."""
        return self._whole(written, {"message": {"role": "assistant", "content": written.text}})

    def begin(self, written: Written) -> Iterator[bytes]:
        """The chunk that names the role."""
        yield self._chunk(written, {"delta": {"role": "assistant", "content": ""}})

    def piece(self, written: Written, text: str) -> bytes:
        """One delta."""
        return self._chunk(written, {"delta": {"content": text}})

    def end(self, written: Written) -> Iterator[bytes]:
        """Why it ended, the usage where it was asked for, [DONE]."""
        yield from self._last(written, {"delta": {}})


class CompletionForm(_Choices):
    """`/v1/completions`."""

    id_prefix = "cmpl-"
    object_name = chunk_name = "text_completion"

    def read(self, body: dict[str, Any]) -> Asked:
        """A body with a prompt."""
        return _asked(body, _text(body.get("prompt")), body.get("max_tokens", 16))

    def whole(self, written: Written) -> dict[str, Any]:
        """The answer in one piece."""
        return self._whole(written, {"text": written.text, "logprobs": None})

    def begin(self, written: Written) -> Iterator[bytes]:
        """Nothing: the first chunk is text."""
        return iter(())

    def piece(self, written: Written, text: str) -> bytes:
        """One chunk of text."""
        return self._chunk(written, {"text": text, "logprobs": None})

    def end(self, written: Written) -> Iterator[bytes]:
        """Why it ended, the usage where it was asked for, [DONE]."""
        yield from self._last(written, {"text": "", "logprobs": None})


class ResponseForm:
    """`/v1/responses`."""

    id_prefix = "resp_"

    def read(self, body: dict[str, Any]) -> Asked:
        """A body with instructions and input."""
        prompt = _text(body.get("instructions")) + _text(body.get("input"))
        return _asked(body, prompt, body.get("max_output_tokens"))

    def whole(self, written: Written) -> dict[str, Any]:
        """The finished response."""
        return self._response(written, "incomplete" if written.is_cut else "completed", [self._item(written)])

    def begin(self, written: Written) -> Iterator[bytes]:
        """The response, its only item and the item's only part are opened."""
        started = self._response(written, "in_progress", [])
        yield self._event("response.created", 0, response=started)
        item = {**self._item(written), "status": "in_progress", "content": []}
        yield self._event("response.output_item.added", 1, output_index=0, item=item)
        yield self._event("response.content_part.added", 2, **self._place(written), part=_part(""))

    def piece(self, written: Written, text: str) -> bytes:
        """One delta."""
        number = 2 + written.output_tokens
        place = self._place(written)
        return self._event("response.output_text.delta", number, **place, delta=text, logprobs=[])

    def end(self, written: Written) -> Iterator[bytes]:
        """Part, item and response are closed; the last event holds the usage."""
        number, place = 3 + written.output_tokens, self._place(written)
        yield self._event("response.output_text.done", number, **place, text=written.text, logprobs=[])
        yield self._event("response.content_part.done", number + 1, **place, part=_part(written.text))
        yield self._event("response.output_item.done", number + 2, output_index=0, item=self._item(written))
        name = "response.incomplete" if written.is_cut else "response.completed"
        yield self._event(name, number + 3, response=self.whole(written))

    def _event(self, name: str, number: int, **content: object) -> bytes:
        return sse({"type": name, "sequence_number": number, **content}, name)

    def _place(self, written: Written) -> dict[str, Any]:
        return {"item_id": self._item_id(written), "output_index": 0, "content_index": 0}

    def _item_id(self, written: Written) -> str:
        return written.id.replace("resp_", "msg_")

    def _item(self, written: Written) -> dict[str, Any]:
        status = "incomplete" if written.is_cut else "completed"
        head = {"id": self._item_id(written), "type": "message", "role": "assistant", "status": status}
        return {**head, "content": [_part(written.text)]}

    def _response(self, written: Written, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": written.id,
            "object": "response",
            "created_at": int(time.time()),
            "status": status,
            "model": written.model,
            "output": output,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": self._usage(written) if output else None,
        }

    def _usage(self, written: Written) -> dict[str, Any]:
        return {
            "input_tokens": written.prompt_tokens,
            "input_tokens_details": {"cached_tokens": written.cached_tokens},
            "output_tokens": written.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": written.prompt_tokens + written.output_tokens,
        }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


class MessagesForm:
    """`/v1/messages`, Anthropic's form."""

    id_prefix = "msg_"

    def read(self, body: dict[str, Any]) -> Asked:
        """A body with a system text and messages."""
        prompt = _text(body.get("system")) + _text(body.get("messages"))
        return _asked(body, prompt, body.get("max_tokens"))

    def whole(self, written: Written) -> dict[str, Any]:
        """The message in one piece."""
        return self._message(written, [{"type": "text", "text": written.text}], self._stop(written))

    def begin(self, written: Written) -> Iterator[bytes]:
        """The message and its only block are opened."""
        yield self._event("message_start", message=self._message(written, [], None))
        yield self._event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        yield self._event("ping")

    def piece(self, written: Written, text: str) -> bytes:
        """One delta."""
        return self._event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})

    def end(self, written: Written) -> Iterator[bytes]:
        """Block and message are closed; the usage comes with why it stopped."""
        yield self._event("content_block_stop", index=0)
        stopped = {"stop_reason": self._stop(written), "stop_sequence": None}
        yield self._event("message_delta", delta=stopped, usage={"output_tokens": written.output_tokens})
        yield self._event("message_stop")

    def _event(self, name: str, **content: object) -> bytes:
        return sse({"type": name, **content}, name)

    def _stop(self, written: Written) -> str:
        return "max_tokens" if written.is_cut else "end_turn"

    def _message(self, written: Written, content: list[dict[str, Any]], stop: str | None) -> dict[str, Any]:
        return {
            "id": written.id,
            "type": "message",
            "role": "assistant",
            "model": written.model,
            "content": content,
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": {
                # Anthropic counts what was read from the cache apart
                "input_tokens": written.prompt_tokens - written.cached_tokens,
                "cache_read_input_tokens": written.cached_tokens,
                "cache_creation_input_tokens": 0,
                "output_tokens": written.output_tokens,
            },
        }


FORMS: dict[str, Callable[[], Form]] = {
    "/v1/chat/completions": ChatForm,
    "/v1/completions": CompletionForm,
    "/v1/responses": ResponseForm,
    "/v1/messages": MessagesForm,
}
