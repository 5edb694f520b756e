"""Stages that are URLs: any HTTP service that takes and gives JSON, and chat models behind an OpenAI API."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from trimtab.chains.stages import Stage, StageOptions

ANSWER_S = 600.0  # to wait for an answer, where a stage declares no timeout


def http_stage(url: str, *, name: str, headers: Mapping[str, str] | None = None, **options: Any) -> Stage:
    """A stage that posts its arguments as one JSON object, and whose output is the JSON of the answer.

    Such a stage takes no core of its node.
    """
    declared = StageOptions(**{"cpu": 0.0, **options})
    wait_s, sent = min(declared.timeout_s, ANSWER_S), dict(headers or {})

    def call(**arguments: Any) -> Any:
        from trimtab.chains.url_calls import post

        return post(url, arguments, sent, wait_s)

    return Stage(call, declared, name)


def openai_stage(
    url: str, model: str, *, name: str, key_variable: str = "OPENAI_API_KEY", **options: Any
) -> Stage:
    """A chat model behind an OpenAI API, such as a trimtab gateway. Its output is the text of the answer.

    Args:
        url: up to `/v1`.
        key_variable: environment variable of the host that has the API key.
    """
    declared = StageOptions(**{"cpu": 0.0, **options})
    wait_s, key = min(declared.timeout_s, ANSWER_S), os.environ.get(key_variable, "")
    headers = {"Authorization": f"Bearer {key}"} if key else {}

    def call(prompt: str, system: str = "", max_tokens: int = 1024, temperature: float = 0.0) -> str:
        from trimtab.chains.url_calls import post

        told = [{"role": "system", "content": system}] if system else []
        messages = [*told, {"role": "user", "content": prompt}]
        asked = {"model": model, "messages": messages, "max_tokens": max_tokens, "temperature": temperature}
        answer = post(f"{url.rstrip('/')}/chat/completions", asked, headers, wait_s)
        return str(answer["choices"][0]["message"]["content"])

    return Stage(call, declared, name)
