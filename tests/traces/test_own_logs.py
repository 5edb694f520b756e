"""Logs of servers and gateways as traces: every value worked out by hand from the text of the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.trace_files import written
from trimtab.errors import TraceError
from trimtab.traces import TraceOptions, read_trace

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


LITELLM_CALLS = """\
{"request_id": "e", "call_type": "aembedding", "prompt_tokens": 500, "completion_tokens": 0, "status": "success", \
"startTime": "2026-08-06T14:32:00Z", "endTime": "2026-08-06T14:32:01Z", "model": "e"}
{"request_id": "f", "call_type": "acompletion", "prompt_tokens": 0, "completion_tokens": 0, "status": "failure", \
"startTime": "2026-08-06T14:33:00Z", "endTime": "2026-08-06T14:33:00Z", "model": "m"}
{"request_id": "s", "call_type": "acompletion", "prompt_tokens": 40, "completion_tokens": 0, "status": "success", \
"startTime": "2026-08-06T14:34:00Z", "endTime": "2026-08-06T14:34:01Z", "model": "m"}
{"request_id": "i", "call_type": "aimage_generation", "prompt_tokens": 0, "completion_tokens": 0, \
"status": "success", "startTime": "2026-08-06T14:34:00Z", "endTime": "2026-08-06T14:34:01Z", "model": "m"}
"""  # noqa: E501
OTEL_CALLS = """\
{"resourceSpans": [{"scopeSpans": [{"spans": null}]}, {"scopeSpans": null}, null]}
{"span_id": "n", "start_time": "2025-11-13T10:00:00Z", "end_time": "2025-11-13T10:00:01Z", "attributes": null}
{"span_id": "e", "start_time": "2025-11-13T10:00:01Z", "end_time": "2025-11-13T10:00:02Z", "context": null, \
"attributes": {"gen_ai.operation.name": "embeddings", "gen_ai.usage.input_tokens": 800}}
{"span_id": "p", "start_time": "2025-11-13T10:00:02Z", "end_time": "2025-11-13T10:00:04Z", "status": {"code": 2}, \
"attributes": {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 9, "gen_ai.usage.output_tokens": 3}}
{"span_id": "f", "start_time": "2025-11-13T10:00:03Z", "end_time": "2025-11-13T10:00:04Z", "status": {"code": 2}, \
"attributes": {"gen_ai.operation.name": "embeddings", "gen_ai.usage.input_tokens": 9}}
{"span_id": "u", "start_time": "2025-11-13T10:00:03Z", "end_time": "2025-11-13T10:00:04Z", \
"attributes": {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 9}}
"""  # noqa: E501
SGLANG_CALLS = """\
{"timestamp": "2026-11-13T10:00:02", "event": "request.finished", "rid": "e", "out": {"meta_info": \
{"prompt_tokens": 20, "e2e_latency": 1.0}}}
{"timestamp": "2026-11-13T10:00:02", "event": "request.finished", "rid": "a", "out": {"meta_info": \
{"prompt_tokens": 20, "e2e_latency": 1.0, "finish_reason": {"type": "abort"}}}}
"""
SGLANG_EMBEDDINGS = """\
{"request_parameters": "{}", "id": "e", "prompt_tokens": 10, "e2e_latency": 0.5, "request_received_ts": 1763028000.25}
"""  # noqa: E501
VLLM_USER_TEXT = """\
2026-01-01T00:00:00Z stdout F \x1b[32mINFO\x1b[0m 12-31 23:59:59 [logger.py:39] Received request c-1: prompt: 'is it\\'s \
prompt_token_ids: [1, 2, 3], max_tokens=4', params: SamplingParams(stop=["max_tokens=3"], max_tokens=10), \
prompt_token_ids: [9, 8, 7, 6, 5], lora_request: None.
INFO 01-01 00:00:01.5 logger.py:71] Generated response c-1: output: "don't output_token_ids: [1, 2]", \
output_token_ids: [1, 2, 3, 4], finish_reason: stop
ERROR 01-01 00:00:01 [serving.py:2] bad: INFO 01-01 00:00:01 [logger.py:39] Received request c-9: prompt: 'x'
INFO 01-01 00:00:02 [logger.py:39] Received request e-1: prompt: 'x', params: PoolingParams(dim=None), \
prompt_token_ids: [1, 2], lora_request: None.
INFO 01-01 00:00:02 [logger.py:39] Received request c-2: params: SamplingParams(n=1), lora_request: None.
INFO 01-01 00:00:03 [logger.py:71] Generated response c-2 (streaming complete): output: 'cut, output_token_ids: [1]
"""  # noqa: E501
NGINX_USER_TEXT = """\
10.0.0.1 - - [13/Nov/2026:10:00:05 +0000] "POST /v1/chat?key=1 HTTP/1.1" 200 5 "agent 9.999 rt=8.888" rt=2.345
10.0.0.1 - - [13/Nov/2026:10:00:05 +0000] "POST /v1/chat HTTP/1.1" 200 5 "-" "9.999" 0.001 uct="0.1" rt="1.234"
10.0.0.1 - - [13/Nov/2026:10:00:05 +0000] "POST /v1/chat HTTP/1.1" 499 5 "-" "x" 3.000
"""  # noqa: E501
ENVOY_USER_TEXT = """\
[2026-11-13T10:00:01.310Z] "POST /v1/chat?k=1 HTTP/2" 200 - via - "9 9 9 9" 154 15 226 100 "-" \
"c" "fake" "fake" "1.1.1.1:1" "id-1" "api" "10.0.0.7:80"
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
            OTEL_CALLS,  # what was answered in part was served
            "otel-genai",
            {"original_id": ["e", "p"], "size": [40.0, 3.45], "class": ["embeddings", "chat"]},
            {"no request of otel-genai": 1, "failed": 1, "without counts of tokens": 1},
        ),
        (
            LITELLM_CALLS,
            "litellm",
            {"original_id": ["e", "s"], "size": [25.0, 2.0], "class": ["embedding", "completion"]},
            {"without an answer": 1, "without counts of tokens": 1},
        ),
        (SGLANG_CALLS, "sglang", {"original_id": ["e"], "size": [1.0]}, {"without an answer": 1}),
        (SGLANG_EMBEDDINGS, "sglang-metrics", {"original_id": ["e"], "size": [0.5]}, {}),
        (
            VLLM_USER_TEXT,  # from one year into the next, and a line that was cut off
            "vllm",
            {
                "arrival_s": [0.0, 3.0],
                "recorded_s": [2.5, None],
                "prompt_tokens": [5, 2],
                "output_tokens": [4, 0],
                "class": ["generate", "pooling"],
            },
            {"an answer without token ids": 1},
        ),
        (
            NGINX_USER_TEXT,
            "nginx",
            {"recorded_s": [2.345, 1.234], "class": ["/v1/chat", "/v1/chat"]},
            {"status 499": 1},
        ),
        (
            ENVOY_USER_TEXT,
            "envoy",
            {"recorded_s": [0.226], "original_id": ["id-1"], "node": ["10.0.0.7:80"], "class": ["/v1/chat"]},
            {},
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
            assert found == [value if value is None else pytest.approx(value) for value in values]
        else:
            assert found == values


def test_an_answer_needs_token_ids_and_the_switches_that_print_them(tmp_path: Path) -> None:
    received = "INFO 02-13 11:33:33 [logger.py:49] Received request c: params: P(n=1), lora_request: None.\n"
    told = r"read as vllm; left out 1 row: without an answer; .*--enable-log-outputs"
    with pytest.raises(TraceError, match=told):
        read_trace(written(tmp_path, "log", received))


def test_lists_that_the_server_cut_off_are_not_counted(tmp_path: Path) -> None:
    started = "INFO 11-13 09:58:00 [utils.py:233] non-default args: {'model': 'm', 'max_log_len': 4}\n"
    trace = read_trace(written(tmp_path, "log", started + VLLM))
    assert trace.dropped == {"token ids cut off by --max-log-len": 1}
    assert trace.table["original_id"].to_list() == ["c-1"]


def test_what_clients_left_is_kept_on_demand(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "log", NGINX_USER_TEXT), options=TraceOptions(keep_unfinished=True))
    assert trace.table["recorded_s"].to_list() == pytest.approx([3.0, 2.345, 1.234])
