"""The bytes on the wire: requests and answers of a chat model, of any size."""

from __future__ import annotations

import json

MODEL = "bench"
STAMP = b"T"  # begins the time within a chunk


def chat_request(size: int, *, stream: bool = False) -> bytes:
    """A body of about this size. A streaming one asks for usage, as many clients do not: it does not."""
    body = {"model": MODEL, "max_tokens": 64, "stream": stream, "messages": [{"role": "user", "content": ""}]}
    padding = max(0, size - len(json.dumps(body)))
    body["messages"] = [{"role": "user", "content": "word " * (padding // 5)}]
    return json.dumps(body, separators=(",", ":")).encode()


def chat_answer(size: int) -> bytes:
    """A whole answer of about this size, with usage."""

    def answer(text: str) -> bytes:
        message = {"role": "assistant", "content": text}
        body = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": MODEL,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 200, "completion_tokens": 64, "total_tokens": 264},
        }
        return json.dumps(body, separators=(",", ":")).encode()

    return answer("word " * max(0, (size - len(answer(""))) // 5))


def chunk(content: bytes, finish: bytes = b"null") -> bytes:
    """One event of a stream."""
    return (
        b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"bench",'
        b'"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":%s}]}\n\n' % (content, finish)
    )


LAST_CHUNKS = chunk(b"", b'"stop"') + b"data: [DONE]\n\n"
EVENTS_AT_END = 2
