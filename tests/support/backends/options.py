"""What a fake backend is told at its start: a dataclass, also as command-line arguments."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, get_args

BackendKind = Literal["chat", "image", "speech", "video"]
MetricNames = Literal["vllm", "sglang"]
KINDS: tuple[str, ...] = get_args(BackendKind)


@dataclass(frozen=True, slots=True)
class Options:
    """A backend and its service model. Service seconds are for speed 1; a backend of speed 2 takes half."""

    kind: BackendKind = "chat"
    name: str = ""  # default: its kind
    models: str = ""  # names, comma-separated; default: demo-KIND
    host: str = "127.0.0.1"
    port: int = 0  # 0 = any free one
    speed: float = 1.0
    slots: int = 4  # requests served at a time; others wait in order of arrival
    sigma: float = 0.0  # of the logarithm of the random factor on each service time; its mean is 1
    seed: int = 0
    base_s: float = 0.0  # of every request
    prefill_s: float = 0.0002  # per prompt token that is not cached
    output_s: float = 0.01  # per output token
    output_tokens: int = 64  # written where the request's own limit is not lower
    kv_tokens: int = 65_536  # of all requests that are served at a time: for the cache usage it reports
    cache_blocks: int = 4_096  # blocks of 16 tokens that the prefix cache holds; 0 = none
    step_s: float = 0.02  # per image, step and megapixel
    speech_s: float = 0.005  # per character spoken
    listen_s: float = 0.1  # per second of audio transcribed
    video_s: float = 0.5  # per second of video made
    busy_frac: float = 0.0  # of the machine, that others use while they are busy; service slows down by it
    busy_s: float = 0.0  # how long they are busy
    calm_s: float = 0.0  # and then not
    busy_phase_s: float = 0.0  # added to the clock
    link_mib_per_s: float = 0.0  # at which bodies of requests arrive; 0 = as fast as they come
    away_s: float = 0.0  # a round trip: every answer comes so much later
    metrics: MetricNames = "vllm"
    faults: str = ""  # rules as JSON, as `POST /_demo/faults` takes them
    api_key_env: str = ""  # variable with the key that callers must send; "" = none is asked for
    tls_cert: str = ""  # file; "" = no TLS
    tls_key: str = ""
    parent: int = 0  # process whose end is ours; 0 = the one that started us

    @property
    def shown_name(self) -> str:
        """Its name, or its kind where it has none."""
        return self.name or self.kind

    @property
    def served_models(self) -> tuple[str, ...]:
        """The models it serves; the first is its own."""
        return tuple(self.models.split(",")) if self.models else (f"demo-{self.kind}",)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def to_arguments(options: Options) -> list[str]:
    """The arguments that `from_arguments` reads these options from."""
    defaults = Options()
    pairs = ((f.name, getattr(options, f.name)) for f in fields(Options))
    return [f"{_flag(name)}={value}" for name, value in pairs if value != getattr(defaults, name)]


def from_arguments(given: Sequence[str] | None = None) -> Options:
    """Options from a command line; ends the process with a usage message where they are wrong."""
    parser = argparse.ArgumentParser("python -m support.backends", description="A fake backend.")
    choices = {"kind": KINDS, "metrics": get_args(MetricNames)}
    defaults = Options()
    for field in fields(Options):
        default = getattr(defaults, field.name)
        parser.add_argument(
            _flag(field.name), type=type(default), default=default, choices=choices.get(field.name)
        )
    options = Options(**vars(parser.parse_args(given)))
    if options.speed <= 0 or options.slots < 1:
        parser.error("--speed must be above 0, --slots at least 1")
    return options
