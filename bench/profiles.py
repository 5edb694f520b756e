"""Built-in latency profiles from measured operations and published figures.

Run `python -m bench.profiles`. It reads ../shared/data and writes src/trimtab/profiles/builtin.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from bench.results import write_whole
from trimtab.profiles import LatencyProfile, profile_text
from trimtab.profiles.fit_profile import FittedProfile
from trimtab.profiles.roofline import Gpu, roofline
from trimtab.profiles.sources import Described, fit_files

ROOT = Path(__file__).parents[1]
OPERATIONS = ROOT.parent / "shared/data/llm_op_profiles"  # LLMServingSim@5daddb21a545, profiler/perf; MIT
BUILTIN = ROOT / "src/trimtab/profiles/builtin"
SOURCE = "operations measured by LLMServingSim's profiler (vLLM 0.19)"


@dataclass(frozen=True)
class Measured:
    """One model on one GPU of `llm_op_profiles`."""

    name: str
    gpu: str
    file_gpu: str
    model: str
    memory_gib: float
    tensor_parallel: int = 1
    kv_tokens: int | None = None


LLAMA_8B, LLAMA_70B = "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B"
QWEN_32B, QWEN_30B = "Qwen/Qwen3-32B", "Qwen/Qwen3-30B-A3B-Instruct-2507"
PRO = "RTX PRO 6000", "RTXPRO6000"
PRO_GIB = 94.97  # as the driver tells
MEASURED = [
    Measured("rtx4090-llama-3.1-8b", "RTX 4090", "RTX4090", LLAMA_8B, 23.52, kv_tokens=41_408),
    Measured("rtx-pro-6000-llama-3.1-8b", *PRO, LLAMA_8B, PRO_GIB),
    Measured("rtx-pro-6000-llama-3.1-8b-tp2", *PRO, LLAMA_8B, PRO_GIB, 2),
    Measured("rtx-pro-6000-qwen3-32b", *PRO, QWEN_32B, PRO_GIB),
    Measured("rtx-pro-6000-qwen3-32b-tp2", *PRO, QWEN_32B, PRO_GIB, 2),
    Measured("rtx-pro-6000-qwen3-30b-a3b", *PRO, QWEN_30B, PRO_GIB),
    Measured("rtx-pro-6000-qwen3-30b-a3b-tp2", *PRO, QWEN_30B, PRO_GIB, 2),
]

# All-reduce of two RTX PRO 6000 over PCIe with NCCL: bytes, microseconds.
# LLMServingSim@1b2cc02d, profiler/perf/RTXPRO6000/hardware.yaml.
ALL_REDUCE_US = {
    4096: 12.7,
    16384: 13.9,
    65536: 14.8,
    131072: 17.4,
    262144: 21.7,
    524288: 29.8,
    1048576: 41.0,
    2097152: 67.3,
    4194304: 124.9,
    8388608: 240.6,
    16777216: 471.1,
}

# Memory, bandwidth and dense operations in bf16 as published; links: NVLink 4, NVLink 3, PCIe 4.0 × 16.
# AIConfigurator@095f58a51c4c, systems/{h100_sxm,a100_sxm,l40s}.yaml.
H100 = Gpu("H100 SXM", 80.0, 3.35e12, 989e12, 450e9)
A100 = Gpu("A100 SXM 80 GB", 80.0, 2.039e12, 312e12, 300e9)
L40S = Gpu("L40S", 44.99, 864e9, 362.05e12, 32e9)
ROOFLINES = {
    f"{short}-llama-3.1-{size}": (gpu, model, ranks)
    for short, gpu in (("h100", H100), ("a100", A100), ("l40s", L40S))
    for size, model, ranks in (("8b", LLAMA_8B, 1), ("70b-tp4", LLAMA_70B, 4))
}


def fitted(measured: Measured) -> FittedProfile:
    """A profile from the operations of ../shared/data."""
    stem = f"{measured.file_gpu}__{measured.model.replace('/', '__')}__bf16__"
    ranks = measured.tensor_parallel
    files = [
        OPERATIONS / f"{stem}tp{ranks}__{kind}.csv.gz" for kind in ("attention", "dense", "per_sequence")
    ]
    meta = yaml.safe_load((OPERATIONS / f"{stem}meta.yaml").read_text(encoding="utf-8"))
    notes = [SOURCE]
    if meta["skew_fit"]["enabled"]:  # of the RTX 4090 the profiler says that its table holds nothing
        files.append(OPERATIONS / f"{stem}tp{ranks}__skew_fit.csv.gz")
        notes.append("contexts as unequal as in Azure's conversation trace")
    experts = OPERATIONS / f"{stem}tp1__moe.csv.gz"
    if experts.exists():
        files.append(experts)
        notes.append("all experts as likely" + (", half of them on a GPU" if ranks == 2 else ""))
    with TemporaryDirectory() as folder:
        if ranks > 1:
            files.append(_all_reduce_file(Path(folder), ranks))
        described = Described(
            measured.gpu,
            measured.model,
            measured.memory_gib,
            tensor_parallel=ranks,
            kv_tokens=measured.kv_tokens,
            notes="; ".join(notes),
        )
        return fit_files(files, described)


def _all_reduce_file(folder: Path, ranks: int) -> Path:
    lines = [f"{size},{ranks},{us / 1000}" for size, us in ALL_REDUCE_US.items()]
    file = folder / "all_reduce.csv"
    file.write_text("\n".join(["size,num_workers,time_stats.all_reduce.median", *lines]) + "\n")
    return file


def profiles() -> Iterator[tuple[str, LatencyProfile]]:
    """Names and profiles."""
    for measured in MEASURED:
        yield measured.name, fitted(measured).profile
    for name, (gpu, model, ranks) in ROOFLINES.items():
        yield name, roofline(gpu, model, ranks)


def main() -> None:
    BUILTIN.mkdir(exist_ok=True)
    for name, profile in profiles():
        write_whole(
            BUILTIN / f"{name}.yaml", f"# Made by `python -m bench.profiles`.\n{profile_text(profile)}"
        )
        print(name, f"{profile.kv_capacity:,} tokens")


if __name__ == "__main__":
    main()
