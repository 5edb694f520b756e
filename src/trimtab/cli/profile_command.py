"""`trimtab profile`: how long iterations of language models and steps of training jobs take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimtab.cli import profile_job
from trimtab.cli.option_groups import examples, grouped
from trimtab.cli.output import note, print_json, show, where
from trimtab.cli.shared_options import Json, Quiet

if TYPE_CHECKING:
    from rich.table import Table

    from trimtab.profiles.fit_profile import FittedProfile

DEFAULT_OUT = Path("profile.yaml")

app = typer.Typer(
    no_args_is_help=True,
    help="How long iterations of language models take on a GPU, and steps of training jobs: fit profiles, "
    "list the built-in ones, predict steps.",
    epilog=examples(
        "trimtab profile list",
        "trimtab profile fit rows.csv --gpu 'RTX 4090' --model meta-llama/Llama-3.1-8B --memory-gib 23.5",
        "trimtab profile job nets:ResNet --input 3x32x32 --batch 32,64 --gpus 1,2,4,8",
    ),
)
profile_job.register(app)


@app.command("list", epilog=examples("trimtab profile list", "trimtab profile list --json"))
@grouped
def list_profiles(json: Json = False) -> None:
    """List the built-in profiles."""
    from rich.table import Table

    from trimtab.profiles import load_profile, names

    known = {name: load_profile(name) for name in names()}
    if json:
        shown = {
            name: p.model_dump(exclude={"dense_s", "sequence_s", "attention_s", "context_s"})
            for name, p in known.items()
        }
        print_json({"profiles": shown})
        return
    table = Table(box=None, pad_edge=False, caption_justify="left")
    table.caption = "roofline: from bandwidth and operations of the GPU, not measured."
    for title in ("profile", "gpu", "model", "precision", "source"):
        table.add_column(title)
    for title in ("GPUs", "KV tokens", "batch"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, p in known.items():
        texts = (name, p.gpu, p.model, p.precision, p.source)
        table.add_row(*texts, str(p.tensor_parallel), f"{p.kv_capacity:,}", str(p.batch_max))
    show(table)


@app.command(
    "fit",
    epilog=examples(
        "trimtab profile fit rows.csv --gpu 'RTX 4090' --model meta-llama/Llama-3.1-8B --memory-gib 23.5",
        "trimtab profile fit attention.csv dense.csv per_sequence.csv --gpu L4 --model Qwen/Qwen3-32B "
        "--memory-gib 22 --html errors.html",
        "trimtab profile fit perf_model.csv --gpu a100-80gb --model llama2-70b --tensor-parallel 4 "
        "--memory-gib 80 --weights-gib 32 --kv-bytes-per-token 81920",
        "trimtab profile fit scrapes/*.txt --base h100-llama-3.1-8b --gpu H100 "
        "--model meta-llama/Llama-3.1-8B --memory-gib 80",
        "trimtab profile fit recordings/ --base roofline.yaml --gpu L4 --model Qwen/Qwen3-32B "
        "--memory-gib 22 --tensor-parallel 4",
    ),
)
@grouped
def fit(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="CSV, also .gz: iterations (batch, context, prompt_tokens, seconds), operations of "
            "LLMServingSim's profiler, Splitwise's table, rows of servers; .json: DistServe's coefficients. "
            "What a server served: pages of its /metrics, recordings of the gateway, requests "
            "(node, start_s, first_token_s, finish_s, prompt_tokens, output_tokens).",
            metavar="FILE…",
        ),
    ],
    gpu: Annotated[str, typer.Option("--gpu", help="Name of the GPU, as in the file.", metavar="NAME")],
    model: Annotated[str, typer.Option("--model", help="Name of the model, as in the file.", metavar="NAME")],
    memory_gib: Annotated[
        float, typer.Option("--memory-gib", min=0.0, help="Memory of a GPU.", metavar="GIB")
    ],
    precision: Annotated[str, typer.Option("--precision", help="Of the weights.", metavar="NAME")] = "bf16",
    tensor_parallel: Annotated[
        int, typer.Option("--tensor-parallel", min=1, help="GPUs that share the model.", metavar="GPUS")
    ] = 1,
    weights_gib: Annotated[
        float | None,
        typer.Option(
            "--weights-gib", min=0.0, help="Weights on a GPU; known for some models.", metavar="GIB"
        ),
    ] = None,
    kv_bytes_per_token: Annotated[
        float | None,
        typer.Option(
            "--kv-bytes-per-token",
            min=0.0,
            help="KV of a token on a GPU; known for some models.",
            metavar="BYTES",
        ),
    ] = None,
    kv_tokens: Annotated[
        int | None,
        typer.Option(
            "--kv-tokens", min=1, help="Capacity that the server tells at its start.", metavar="TOKENS"
        ),
    ] = None,
    batch_max: Annotated[
        int, typer.Option("--batch-max", min=1, help="Rows of a batch (vLLM: max_num_seqs).", metavar="ROWS")
    ] = 256,
    token_budget: Annotated[
        int,
        typer.Option(
            "--token-budget", min=1, help="Tokens of an iteration (max_num_batched_tokens).", metavar="TOKENS"
        ),
    ] = 2048,
    backend: Annotated[
        str, typer.Option("--backend", help="Of rows of servers: which one.", metavar="NAME")
    ] = "vllm",
    base: Annotated[
        str | None,
        typer.Option(
            "--base", help="Of what a server served: scale this profile, a name or file.", metavar="PROFILE"
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Write the profile here.", metavar="FILE")
    ] = DEFAULT_OUT,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page with the errors.", metavar="FILE")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit the iteration seconds of a model on a GPU to measurements."""
    from trimtab.profiles import load_profile, profile_text
    from trimtab.profiles.sources import Described, fit_files
    from trimtab.report.whole_files import check_file, write_text

    for path in filter(None, (out, html)):
        check_file(path)
    described = Described(
        gpu,
        model,
        memory_gib,
        precision,
        tensor_parallel,
        weights_gib,
        kv_bytes_per_token,
        kv_tokens,
        batch_max,
        token_budget,
        notes="fitted to " + ", ".join(path.name for path in files) + (f"; scales {base}" if base else ""),
    )
    fitted = fit_files(files, described, backend, None if base is None else load_profile(base))
    write_text(out, profile_text(fitted.profile))
    if html is not None:
        from trimtab.report.profile_page import write_profile_report

        write_profile_report(fitted, html, f"{model} on {gpu}")
    if json:
        from dataclasses import asdict

        errors = {kind: asdict(error) for kind, error in fitted.errors().items()}
        told = {"out": str(out), "kv_tokens": fitted.profile.kv_capacity, "errors": errors}
        print_json(told | ({"parts": [asdict(part) for part in fitted.parts]} if fitted.parts else {}))
        return
    show(_table(fitted))
    if fitted.parts:
        show(_parts_table(fitted, base))
    for path in filter(None, (out, html)):
        note(where(path, path.stat().st_size), quiet=quiet)


@app.command(
    "roofline",
    epilog=examples(
        "trimtab profile roofline --gpu H200 --model meta-llama/Llama-3.1-70B --tensor-parallel 2 "
        "--memory-gib 141 --tb-per-s 4.8 --tflops 989 --link-gb-per-s 450",
    ),
)
@grouped
def roofline(
    gpu: Annotated[str, typer.Option("--gpu", help="Name of the GPU.", metavar="NAME")],
    model: Annotated[str, typer.Option("--model", help="A model whose shape is known.", metavar="NAME")],
    memory_gib: Annotated[
        float, typer.Option("--memory-gib", min=0.0, help="Memory of a GPU.", metavar="GIB")
    ],
    tb_per_s: Annotated[
        float,
        typer.Option("--tb-per-s", min=1e-3, help="Bandwidth of its memory, published.", metavar="TB/S"),
    ],
    tflops: Annotated[
        float,
        typer.Option("--tflops", min=1e-3, help="Its dense bf16 arithmetic, published.", metavar="TFLOPS"),
    ],
    link_gb_per_s: Annotated[
        float,
        typer.Option("--link-gb-per-s", min=1e-3, help="To the next GPU, in one direction.", metavar="GB/S"),
    ] = 64.0,
    tensor_parallel: Annotated[
        int, typer.Option("--tensor-parallel", min=1, help="GPUs that share the model.", metavar="GPUS")
    ] = 1,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Write the profile here.", metavar="FILE")
    ] = DEFAULT_OUT,
    quiet: Quiet = False,
) -> None:
    """Reckon the iteration seconds of a model from published figures of a GPU, where nothing was measured."""
    from trimtab.profiles import profile_text
    from trimtab.profiles.roofline import Gpu
    from trimtab.profiles.roofline import roofline as reckoned
    from trimtab.report.whole_files import write_text

    published = Gpu(gpu, memory_gib, tb_per_s * 1e12, tflops * 1e12, link_gb_per_s * 1e9)
    profile = reckoned(published, model, tensor_parallel)
    write_text(out, profile_text(profile))
    note(f"note: not measured: {profile.notes}", quiet=quiet)
    note(where(out, out.stat().st_size), quiet=quiet)


def _table(fitted: FittedProfile) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, caption_justify="left")
    table.caption = "Relative errors of rows that were held back, by a fit of the others."
    table.add_column("iterations")
    for title in ("held back", "mean %", "median %", "p90 %"):
        table.add_column(title, justify="right", no_wrap=True)
    for kind, error in fitted.errors().items():
        frac = (error.mean, error.median, error.p90)
        table.add_row(kind, f"{error.rows:,}", *(f"{100 * each:.2f}" for each in frac))
    return table


def _parts_table(fitted: FittedProfile, base: str | None) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, caption_justify="left")
    seen = fitted.held_back.decoding
    table.caption = (
        f"Multiples of {base}, ± one standard deviation; what traffic does not tell stays near 1. "
        f"Seen: means of {seen.min():.0f} to {seen.max():.0f} decoding rows; all else is extrapolated."
    )
    table.add_column("part")
    table.add_column("multiple", justify="right", no_wrap=True)
    table.add_column("from")
    for part in fitted.parts:
        origin = "measured" if part.is_measured else f"{base}, hardly measured"
        table.add_row(part.name, f"{part.multiple:.2f} ± {part.sd:.2f}", origin)
    return table
