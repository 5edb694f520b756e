"""The allow-list: what is on it, and that nothing else passes for it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.errors import ConfigError
from trimtab.gateway.api.endpoints import BUILT_IN, Endpoints, Target, path_id, split_target
from trimtab.gateway.model import Dialect, Endpoint, Kind, Refusal

TABLE = Endpoints([("/v1/tokenize", ["post"]), ("/custom/{name}/run", ["POST", "GET"])])


def test_every_path_is_found_by_each_of_its_methods() -> None:
    for endpoint in BUILT_IN:
        for method in endpoint.methods:
            assert TABLE.find(method, endpoint.path.replace("{id}", "resp_1-a.b")) is endpoint


def test_dialect_kind_and_replay_follow_the_path() -> None:
    messages = TABLE.find("POST", "/v1/messages")
    assert isinstance(messages, Endpoint)
    assert (messages.dialect, messages.kind, messages.replayable) == (Dialect.ANTHROPIC, Kind.MESSAGES, True)
    video = TABLE.find("POST", "/v1/videos")
    assert isinstance(video, Endpoint)
    assert (video.replayable, video.local) == (False, True)
    relayed = TABLE.find("POST", "/v1/tokenize")
    assert isinstance(relayed, Endpoint)
    assert (relayed.kind, relayed.replayable) == (Kind.RELAY, False)


def test_ids_are_read_from_the_path() -> None:
    for path, expected in [
        ("/v1/responses/resp_1", "resp_1"),
        ("/v1/responses/resp_1/input_items", "resp_1"),
        ("/v1/models/org/name", "org/name"),
        ("/v1/models/org%2Fname", "org/name"),
        ("/custom/x/run", "x"),
        ("/v1/models", ""),
    ]:
        endpoint = TABLE.find("GET", path)
        assert isinstance(endpoint, Endpoint), path
        assert path_id(endpoint, path) == expected


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions/",
        "/v1//chat/completions",
        "//v1/chat/completions",
        "/V1/chat/completions",
        "/v1/chat/%63ompletions",
        "/v1/chat/completions;x=1",
        "/v1/x/../chat/completions",
        "/v1/responses/..",
        "/v1/responses/%2e%2e",
        "/v1/responses/{}",
        "/v1/responses/",
        "/v1/responses/a/b",
        "/v1/responses/a%2fb/cancel",
        "/v1/models/",
        "/reset_prefix_cache",
        "/v1/load_lora_adapter",
        "/sleep",
        "/metrics",
        "",
        "/",
        "*",
    ],
)
def test_what_looks_like_an_allowed_path_is_unknown(path: str) -> None:
    refusal = TABLE.find("POST", path)
    assert isinstance(refusal, Refusal)
    assert refusal.status == 404


def test_a_wrong_method_names_the_right_ones() -> None:
    refusal = TABLE.find("GET", "/v1/chat/completions")
    assert isinstance(refusal, Refusal)
    assert (refusal.status, refusal.allow) == (405, ("POST",))


@given(st.text("./%;\\ {}~?#v1", max_size=12), st.sampled_from(["", "/v1/", "/v1/jobs/", "/v1/responses/a/"]))
def test_no_odd_path_is_found(tail: str, head: str) -> None:
    found = TABLE.find("POST", head + tail)
    assert isinstance(found, Refusal)


def test_targets_are_split() -> None:
    assert split_target(b"/v1/models?a=b?c") == Target("/v1/models", "a=b?c", b"/v1/models?a=b?c")
    assert split_target(b"http://h:1/v1/models") == Target("/v1/models", "", b"/v1/models")
    assert split_target(b"HTTP://h") == Target("/", "", b"/")
    for bad in (b"*", b"h:443", b"ftp://h/v1", b"/a b", b"/a#b", b"/\xc3\xa4", b"", b"http:///v1"):
        assert isinstance(split_target(bad), Refusal), bad


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/chat/completions", ["POST"]),
        ("v1/x", ["POST"]),
        ("/v1/../x", ["POST"]),
        ("/a//b", ["POST"]),
        ("/{a}/{b}", ["GET"]),
        ("/x", []),
        ("/x", ["PO ST"]),
        ("/a%2e", ["GET"]),
    ],
)
def test_bad_relay_paths_are_named(path: str, methods: list[str]) -> None:
    with pytest.raises(ConfigError, match="relay_paths"):
        Endpoints([(path, methods)])
