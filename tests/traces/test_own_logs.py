"""Logs of servers and gateways as traces: every value worked out by hand from the text of the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.trace_files import written
from trimtab.traces import read_trace

NGINX = """\
10.0.0.1 - alice [13/Nov/2026:10:00:05 +0100] "POST /v1/chat HTTP/1.1" 200 5123 "-" "curl/8" 2.345
10.0.0.123 - - [13/Nov/2026:09:00:06 +0000] "POST /v1/text HTTP/1.1" 200 12 "-" "py 10.0.0.123" rt=0.120
10.0.0.1 - bob [13/Nov/2026:10:00:05 +0100] "POST /v1/chat HTTP/1.1" 502 5123 "-" "curl/8" 0.001
worker process 7 exited
"""
ENVOY = """\
[2026-11-13T10:00:01.310Z] "POST /v1/chat HTTP/2" 200 - 154 15 226 100 "-" "c" "id-1" "api" "10.0.0.7:80"
[2026-11-13T10:00:00.310Z] "POST /v1/chat HTTP/2" 200 - via - "-" 154 15 1226 - "-" "c" "id-2" "api" "b:80"
"""
OTEL = """\
{"resourceSpans":[{"scopeSpans":[{"spans":[{"spanId":"a1","startTimeUnixNano":"1763028000000000000",\
"endTimeUnixNano":"1763028002500000000","attributes":[{"key":"gen_ai.request.model","value":\
{"stringValue":"llama"}},{"key":"gen_ai.usage.input_tokens","value":{"intValue":"120"}},\
{"key":"gen_ai.usage.output_tokens","value":{"intValue":"44"}}]},{"spanId":"b","attributes":[]}]}]}]}
{"name":"chat","context":{"span_id":"b2"},"start_time":"2025-11-13T10:00:01Z","end_time":"2025-11-13T10:00:02.5Z",\
"attributes":{"gen_ai.response.model":"llama","gen_ai.usage.prompt_tokens":10,"gen_ai.usage.completion_tokens":5}}
{"span_id":"b1","start_time":"2025-11-13T10:00:01Z","end_time":"2025-11-13T10:00:03Z","attributes":\
{"gen_ai.operation.name":"invoke_agent","gen_ai.usage.input_tokens":10,"gen_ai.usage.output_tokens":5}}
"""
LITELLM = """\
request_id,prompt_tokens,completion_tokens,startTime,endTime,model,team_id
r2,100,10,2026-11-13 10:00:02.5+00,2026-11-13 10:00:04.5+00,gpt,red
r1,50,20,2026-11-13 10:00:01,2026-11-13 10:00:04,gpt,
r3,0,0,2026-11-13 10:00:05,2026-11-13 10:00:05,gpt,red
"""
VLLM = """\
INFO 11-13 09:59:00 [api_server.py:1] starting
INFO 11-13 10:00:00 [log.py:3] Received request c-1: params: P(n=1), prompt_token_ids: [1, 2, 3].
INFO 11-13 10:00:02 [log.py:9] Generated response c-1 (streaming delta): output: '', output_token_ids: [5]
INFO 11-13 10:00:03 [log.py:9] Generated response c-1 (streaming delta): output: '', output_token_ids: [5, 6]
INFO 11-13 10:00:01 [log.py:3] Received request c-2: params: P(max_tokens=9), lora_request: None.
INFO 11-13 10:00:04 [log.py:9] Generated response c-2: output: '', output_token_ids: [5, 6, 7, 8]
"""
SGLANG = """\
{"timestamp": "2026-11-13T10:00:00.5", "event": "request.received", "rid": "q1", "obj": {}}
{"timestamp": "2026-11-13T10:00:02.5", "event": "request.finished", "rid": "q1", "out": {"meta_info": \
{"prompt_tokens": 100, "completion_tokens": 50, "e2e_latency": 2.0}}}
{"timestamp": "2026-11-13T10:00:02.6", "event": "request.finished", "rid": "q2", "out": {"meta_info": \
{"prompt_tokens": 20, "completion_tokens": 1, "e2e_latency": 0.1}}}
"""
SGLANG_METRICS = """\
{"request_parameters": "{}", "id": "s1", "prompt_tokens": 10, "completion_tokens": 4, "e2e_latency": 0.5, \
"request_received_ts": 1763028000.25}
"""
BURSTGPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,API log
"""


@pytest.mark.parametrize(
    ("text", "name", "columns", "dropped"),
    [
        (
            NGINX,  # the time of a line is that of its end
            "nginx",
            {
                "arrival_s": [0.0, 3.225],
                "recorded_s": [2.345, 0.12],
                "size": [2.345, 0.12],
                "tenant": ["alice", None],
                "class": ["/v1/chat", "/v1/text"],
            },
            {"no request of nginx": 1, "status 502": 1},
        ),
        (
            ENVOY,
            "envoy",
            {
                "arrival_s": [0.0, 1.0],
                "recorded_s": [1.226, 0.226],
                "original_id": ["id-2", "id-1"],
                "node": ["b:80", "10.0.0.7:80"],
            },
            {},
        ),
        (
            OTEL,
            "otel-genai",
            {
                "arrival_s": [0.0, 1.0],
                "recorded_s": [2.5, 1.5],
                "size": [50.0, 5.5],
                "model": ["llama", "llama"],
                "original_id": ["a1", "b2"],
            },
            {"no request of otel-genai": 2},
        ),
        (
            LITELLM,
            "litellm",
            {
                "arrival_s": [0.0, 1.5],
                "recorded_s": [3.0, 2.0],
                "original_id": ["r1", "r2"],
                "tenant": [None, "red"],
            },
            {"without an answer": 1},
        ),
        (
            VLLM,
            "vllm",
            {
                "arrival_s": [0.0, 1.0],
                "recorded_s": [3.0, 3.0],
                "prompt_tokens": [3, None],
                "output_tokens": [3, 4],
                "original_id": ["c-1", "c-2"],
            },
            {},
        ),
        (
            SGLANG,
            "sglang",
            {
                "arrival_s": [0.0, 2.0],
                "recorded_s": [2.0, 0.1],
                "size": [55.0, 2.0],
                "output_tokens": [50, 1],
            },
            {"request.received": 1},
        ),
        (
            SGLANG_METRICS,
            "sglang-metrics",
            {"arrival_s": [0.0], "recorded_s": [0.5], "size": [4.5], "original_id": ["s1"]},
            {},
        ),
        (
            BURSTGPT,
            "burstgpt",
            {"arrival_s": [0.0, 113.0], "prompt_tokens": [472, 417], "model": ["ChatGPT", "GPT-4"]},
            {"without an answer": 1},
        ),
    ],
)
def test_logs_are_recognised_and_read(
    tmp_path: Path, text: str, name: str, columns: dict[str, list[Any]], dropped: dict[str, int]
) -> None:
    trace = read_trace(written(tmp_path, "log", text))
    assert trace.format == name
    assert trace.dropped == dropped
    for column, values in columns.items():
        found = trace.table[column].to_list()
        if isinstance(values[0], float):
            assert found == pytest.approx(values)
        else:
            assert found == values
