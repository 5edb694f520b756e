"""The proxies: how each is installed, configured and started. Each in its best normal configuration."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import yaml

from bench.gateway.bodies import MODEL
from bench.startup import ROOT

KEY = "sk-bench-0123456789abcdef"
MAX_BODY_MIB = 64
Command = Callable[[Path, int, Sequence[int]], list[str]]  # folder for files, its port, ports of the backends


@dataclass(frozen=True, slots=True)
class Proxy:
    """One contestant. `command` writes what it needs into a folder and says how it is started."""

    name: str
    about: str  # options that matter, for the page
    program: str  # path, or name on the PATH
    command: Command = field(repr=False)
    start_s: float = 60.0  # the longest that it may take to answer
    environment: Mapping[str, str] = field(default_factory=dict)
    is_slow: bool = False  # hundreds of requests a second at most: less is asked of it
    python_env: Path | None = (
        None  # written in Python, as the first word of its command: where it is installed
    )

    @property
    def is_installed(self) -> bool:
        """Whether it can be started here."""
        return (
            shutil.which(self.program) is not None or shutil.which(self.program, path="/usr/sbin") is not None
        )

    @property
    def path(self) -> str:
        """Its program's path."""
        return shutil.which(self.program) or shutil.which(self.program, path="/usr/sbin") or self.program


def _peer(venv: str, program: str) -> str:
    return str(_environment(venv) / "bin" / program)


def _environment(venv: str) -> Path:
    return ROOT / f".venv-peers-{venv}"


def _urls(backends: Sequence[int]) -> list[str]:
    return [f"http://127.0.0.1:{port}" for port in backends]


def _found(name: str) -> str:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin") or name


def _nginx(folder: Path, port: int, backends: Sequence[int]) -> list[str]:
    servers = "".join(f"server 127.0.0.1:{backend};" for backend in backends)
    (folder / "nginx.conf").write_text(
        f"""daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 8192; }}
http {{
  access_log off; client_max_body_size {MAX_BODY_MIB}m; client_body_buffer_size 2m;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi; keepalive_requests 100000000;
  upstream nodes {{ least_conn; {servers} keepalive 512; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://nodes; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_buffer_size 16k; proxy_buffers 8 16k;
    }}
  }}
}}
""",
        encoding="utf-8",
    )
    return [_found("nginx"), "-c", str(folder / "nginx.conf"), "-p", str(folder)]


def _haproxy(folder: Path, port: int, backends: Sequence[int]) -> list[str]:
    servers = "\n".join(f"  server s{i} 127.0.0.1:{p} check inter 5s" for i, p in enumerate(backends))
    (folder / "haproxy.cfg").write_text(
        f"""global
  nbthread 1
  maxconn 8192
defaults
  mode http
  timeout connect 5s
  timeout client 300s
  timeout server 300s
  option http-keep-alive
  http-reuse always
  option httpchk GET /health
frontend clients
  bind 127.0.0.1:{port} backlog 4096
  default_backend nodes
backend nodes
  balance leastconn
{servers}
""",
        encoding="utf-8",
    )
    return [_found("haproxy"), "-db", "-f", str(folder / "haproxy.cfg")]


def _rust_router(program: str, policy: str, *more: str) -> Command:
    def command(folder: Path, port: int, backends: Sequence[int]) -> list[str]:
        options = ["--host", "127.0.0.1", "--port", str(port), "--policy", policy, "--log-level", "error"]
        options += ["--max-concurrent-requests", "8192", "--prometheus-port", str(port + 10_000)]
        return [program, *more, *options, "--worker-urls", *_urls(backends)]

    return command


def _litellm(folder: Path, port: int, backends: Sequence[int]) -> list[str]:
    models = [
        {
            "model_name": MODEL,
            "litellm_params": {"model": f"openai/{MODEL}", "api_base": f"{url}/v1", "api_key": "none"},
        }
        for url in _urls(backends)
    ]
    settings = {
        "model_list": models,
        "router_settings": {"routing_strategy": "least-busy"},
        "litellm_settings": {"telemetry": False, "turn_off_message_logging": True},
        "general_settings": {"master_key": KEY},
    }
    (folder / "litellm.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    program = [_peer("litellm", "python"), _peer("litellm", "litellm")]
    config = str(folder / "litellm.yaml")
    return [*program, "--config", config, "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]


def trimtab_config(folder: Path, port: int, backends: Sequence[int]) -> dict[str, object]:
    """The gateway with everything on."""
    tenants = [
        {"name": "bench", "sha256": sha256(KEY.encode()).hexdigest(), "weight": 1.0},
        {"name": "other", "sha256": sha256(b"other").hexdigest(), "weight": 2.0},
    ]
    nodes = [
        {
            "name": f"n{i}",
            "url": url,
            "models": [MODEL],
            "capacity": {"requests": 1024, "tokens": 100_000_000},
        }
        for i, url in enumerate(_urls(backends))
    ]
    return {
        "listen": f"127.0.0.1:{port}",
        "admin": {"listen": f"127.0.0.1:{port + 10_000}", "keys": [{"sha256": sha256(b"admin").hexdigest()}]},
        "keys": tenants,
        "nodes": nodes,
        "policy": "least-expected-wait",
        "shadow": {"policy": "power-of-d"},
        "limits": {
            "requests_per_minute": 1e9,
            "tokens_per_minute": 1e12,
            "concurrency": 8192,
            "body_bytes": MAX_BODY_MIB * 2**20,
        },
        "queue": {"max_requests": 8192},
        "fairness": {"enabled": True},
        "record": {"folder": str(folder / "record")},
        "store": {"url": f"sqlite:///{folder}/store.db"},
    }


def _trimtab(folder: Path, port: int, backends: Sequence[int]) -> list[str]:
    text = yaml.safe_dump(trimtab_config(folder, port, backends))
    (folder / "gateway.yaml").write_text(text, encoding="utf-8")
    return [sys.executable, "-m", "trimtab", "serve", str(folder / "gateway.yaml")]


_VLLM, _SGLANG = _peer("vllm-router", "vllm-router"), _peer("sglang-router", "sglang-router")
_ROUTER = "log level error, 8,192 requests at a time, all else as it comes (retries, breaker, health checks)"

PROXIES = (
    Proxy(
        "trimtab",
        "keys, limits, token capacity, least-expected-wait, fair queueing, metrics, recording and a shadow "
        "policy on; one data process",
        sys.executable,
        _trimtab,
        python_env=Path(sys.prefix),
    ),
    Proxy(
        "nginx", "one worker, least_conn, 512 kept connections, no access log, unbuffered", "nginx", _nginx
    ),
    Proxy("haproxy", "one thread, leastconn, http-reuse always, health checks, no log", "haproxy", _haproxy),
    Proxy("vllm-router rr", f"round_robin; {_ROUTER}", _VLLM, _rust_router(_VLLM, "round_robin")),
    Proxy("vllm-router p2c", f"power_of_two; {_ROUTER}", _VLLM, _rust_router(_VLLM, "power_of_two")),
    Proxy(
        "sglang-router rr", f"round_robin; {_ROUTER}", _SGLANG, _rust_router(_SGLANG, "round_robin", "launch")
    ),
    Proxy(
        "sglang-router p2c",
        f"power_of_two; {_ROUTER}",
        _SGLANG,
        _rust_router(_SGLANG, "power_of_two", "launch"),
    ),
    Proxy(
        "litellm",
        "one worker (uvicorn), least-busy, a master key, no database, no callbacks",
        _peer("litellm", "litellm"),
        _litellm,
        start_s=180.0,
        environment={
            "LITELLM_LOG": "ERROR",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_MODE": "PRODUCTION",
        },
        is_slow=True,
        python_env=_environment("litellm"),
    ),
)
