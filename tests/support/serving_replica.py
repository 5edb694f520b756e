"""A replica of a language model in a few lines: batches by iteration, and tells what vLLM would tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from trimtab.profiles import LatencyProfile

BUDGET, BLOCK_TOKENS, BLOCKS = 2048, 16, 25_000
ENDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


@dataclass
class Served:
    """A request; its times are seconds from the start."""

    start_s: float
    prompt: int
    output: int
    left: int = 0  # tokens of the prompt that are not read
    made: int = 0
    first_s: float = 0.0
    last_s: float = 0.0


@dataclass
class Replica:
    """Serves arrivals by a profile, all as they come; pages are as of every `period_s`."""

    profile: LatencyProfile
    period_s: float = 10.0
    done: list[Served] = field(default_factory=list)
    pages: list[str] = field(default_factory=list)

    def serve(self, arrivals: Iterator[tuple[float, int, int]]) -> None:
        """Serve (seconds, prompt tokens, output tokens), which are sorted."""
        waiting = [Served(at_s, prompt, output, prompt) for at_s, prompt, output in arrivals]
        waiting.reverse()
        told = {"gap_s": 0.0, "gaps": 0, "prompts": 0, "prompt_tokens": 0, "iterations": 0}
        counts = np.zeros(len(ENDS))
        tables = self.profile.tables(512, 4096)
        running: list[Served] = []
        now_s, next_page_s = 0.0, 0.0
        while waiting or running:
            if not running:
                now_s = max(now_s, waiting[-1].start_s)
            while waiting and waiting[-1].start_s <= now_s:
                running.append(waiting.pop())
            while next_page_s <= now_s:
                self.pages.append(_page(told, counts, running))
                next_page_s += self.period_s
            decoding = [r for r in running if not r.left]
            n, context = len(decoding), sum(r.prompt + r.made for r in decoding)
            room, read, pairs = BUDGET - n, 0, 0.0
            ended = []
            for r in running:
                part = min(r.left, room - read)
                if part:
                    pairs += part * (r.prompt - r.left + part / 2)
                    read, r.left = read + part, r.left - part
                    ended += [r] if not r.left else []
            p = self.profile
            seconds = tables.dense_s[n + read] + tables.sequence_s[min(n + (read > 0), 512)]
            if read:
                seconds += p.mixed_s + p.mixed_row_s * n + p.mixed_context_s * context
                seconds += p.mixed_token_s * read + p.pair_s * pairs
            else:
                seconds += tables.attention_s[n] + tables.context_s[n] * context
            now_s += float(seconds)
            told["iterations"] += 1
            told["gaps"] += n
            told["gap_s"] += n * float(seconds)
            for r in ended:
                told["prompts"] += 1
                told["prompt_tokens"] += r.prompt
                counts += np.array(ENDS) >= r.prompt
                r.first_s = now_s
            for r in (*decoding, *ended):
                r.made, r.last_s = r.made + 1, now_s
            self.done += [r for r in running if r.made >= r.output]
            running = [r for r in running if r.made < r.output]

    def table(self) -> str:
        """The requests as a table for `trimtab profile fit`."""
        head = "node,start_s,first_token_s,finish_s,prompt_tokens,output_tokens\n"
        rows = (f"a,{r.start_s},{r.first_s},{r.last_s},{r.prompt},{r.output}\n" for r in self.done)
        return head + "".join(rows)


def chat(rates_per_s: tuple[float, ...], seconds: float, seed: int) -> Iterator[tuple[float, int, int]]:
    """Arrivals of chat, at each of the rates for so many seconds."""
    rng = np.random.default_rng(seed)
    at_s = 0.0
    for k, rate in enumerate(rates_per_s):
        while at_s < (k + 1) * seconds:
            prompt, output = rng.lognormal((6.6, 5.0), (0.8, 0.7))
            yield at_s, int(np.clip(prompt, 1, 8000)), int(np.clip(output, 2, 2000))
            at_s += float(rng.exponential(1.0 / rate))


def _page(told: dict[str, float], counts: np.ndarray, running: list[Served]) -> str:
    used = sum(r.prompt - r.left + r.made for r in running) / (BLOCK_TOKENS * BLOCKS)
    lines = {
        "num_requests_running": len(running),
        "kv_cache_usage_perc": used,
        "inter_token_latency_seconds_sum": told["gap_s"],
        "inter_token_latency_seconds_count": told["gaps"],
        "time_to_first_token_seconds_count": told["prompts"],
        "prompt_tokens_total": told["prompt_tokens"],
        "iteration_tokens_total_count": told["iterations"],
        "num_preemptions_total": 0.0,
    }
    text = "".join(f'vllm:{name}{{engine="0"}} {float(value)}\n' for name, value in lines.items())
    for end, count in zip(ENDS, counts, strict=True):
        text += f'vllm:request_prompt_tokens_bucket{{engine="0",le="{float(end)}"}} {count}\n'
    info = f'vllm:cache_config_info{{block_size="{BLOCK_TOKENS}",engine="0",num_gpu_blocks="{BLOCKS}"}} 1.0\n'
    return f"# HELP process_start_time_seconds Start.\nprocess_start_time_seconds 1.7e+09\n{text}{info}"
