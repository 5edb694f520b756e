"""`trimtab chain run`: run a chain over inputs, with its progress, and go on with runs that were stopped."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from trimtab.chains.run_defaults import DEFAULT_POLICY
from trimtab.cli.chain_prediction import SIMULATED, Prediction, check_prediction, predict
from trimtab.cli.option_groups import FAILED, USAGE, examples
from trimtab.cli.output import note
from trimtab.cli.shared_options import Journal, Quiet, check_resume, policy_option, resumable

if TYPE_CHECKING:
    from trimtab.chains.graph import Chain
    from trimtab.chains.input_files import InputFile
    from trimtab.chains.results import Result
    from trimtab.chains.session import RunHandle, Session
    from trimtab.live.stage_backend import StageBackend


def run_chain(
    file: Annotated[str, typer.Argument(help="FILE.yaml, FILE.py:CHAIN or MODULE:CHAIN.", metavar="FILE")],
    inputs: Annotated[
        Path | None,
        typer.Option(
            "--input", "-i", help="Inputs: .jsonl, .parquet, .arrow, .csv, or a .txt of one value a line."
        ),
    ] = None,
    block_rows: Annotated[
        int,
        typer.Option(min=0, help="Each input is a table of so many rows of --input. 0 = a row each."),
    ] = 0,
    on: Annotated[
        str,
        typer.Option(
            help="Where stages run. simulated: nowhere; predicts the run by declared costs.",
            metavar="NAME|ADDRESS",
        ),
    ] = "processes",
    workers: Annotated[
        str,
        typer.Option(
            help="Worker processes, or a range in which the queue decides. 0 = one for each core.",
            metavar="N|LEAST..MOST",
            show_default=False,
        ),
    ] = "0",
    policy: Annotated[str, policy_option("NAME or NAME+ORDER.", has_default=True)] = DEFAULT_POLICY,
    out: Annotated[
        Path | None,
        typer.Option(help="File for results: JSON Lines, or .parquet, .arrow, .csv. Default: stdout."),
    ] = None,
    files: Annotated[Path | None, typer.Option(help="Folder for outputs that are bytes.")] = None,
    failed: Annotated[Path | None, typer.Option(help="File for inputs that failed, JSON Lines.")] = None,
    resume: Annotated[str, typer.Option(help="Go on with this run.", metavar="RUN")] = "",
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="With --resume: also inputs that failed.")
    ] = False,
    priority: Annotated[int, typer.Option(help="Higher is more urgent.")] = 0,
    deadline_s: Annotated[float | None, typer.Option(min=0.0, help="Seconds for all of it.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="NAME=TEXT, shown with the run.")] = None,
    key: Annotated[str, typer.Option(help="A run of this key is made once.")] = "",
    journal: Journal = None,
    values_gib: Annotated[
        float | None,
        typer.Option(help="What large values of inputs in flight may take. Default: half of the room."),
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve Prometheus metrics at this port.")
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="Address of that port.")] = "127.0.0.1",
    log: Annotated[Path | None, typer.Option(help="File for a log, JSON Lines with run and stage.")] = None,
    profile: Annotated[
        str, typer.Option(help="Profile this stage's code: a table, and STAGE.prof.", metavar="STAGE")
    ] = "",
    profile_out: Annotated[
        Path | None,
        typer.Option(help="File of the profile. Default: STAGE.prof or STAGE.lprof.", metavar="FILE"),
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="With --profile: line by line.")] = False,
    no_fuse: Annotated[
        bool, typer.Option("--no-fuse", help="Short stages run in attempts of their own.")
    ] = False,
    cluster: Annotated[
        Path | None, typer.Option(help="With --on simulated: the nodes, as scenarios have them.")
    ] = None,
    items: Annotated[
        list[str] | None,
        typer.Option(help="With --on simulated: items in a stage's output.", metavar="STAGE=COUNT"),
    ] = None,
    like: Annotated[
        str, typer.Option(help="With --on simulated: costs and items of this run.", metavar="RUN")
    ] = "",
    quiet: Quiet = False,
) -> None:
    """Run a chain over inputs. Ctrl-C stops it; `--resume RUN` goes on and repeats no finished stage."""
    from trimtab.chains.chain_files import load_chain
    from trimtab.chains.input_files import read_inputs
    from trimtab.chains.recording import default_folder
    from trimtab.chains.run_state import InputPlaces
    from trimtab.errors import ClusterLost, UsageError

    asked = Prediction(cluster, workers, items or (), like, journal)
    refused = {
        "--resume": resume, "--key": key, "--files": files, "--failed": failed, "--log": log, "--tag": tag,
        "--profile": profile, "--metrics-port": metrics_port, "--deadline-s": deadline_s,
        "--values-gib": values_gib, "--priority": priority or None,
    }  # fmt: skip
    check_prediction(asked, on, refused)
    if lines and not profile:
        raise UsageError("goes with a profile", field="--lines", expected="--profile STAGE")
    check_resume("inputs", "--input", given=inputs is not None, resume=resume, retry_failed=retry_failed)
    _check_files(out, failed)
    chain, tags = load_chain(file), _tags(tag or [])
    given = None if inputs is None else read_inputs(inputs, chain, block_rows)
    for problem in given.problems if given is not None else ():
        note(str(problem))
    if given is not None and not given.values:
        expected = "a JSON value a line, or a table with rows"
        raise UsageError("has no input that can be read", file=str(inputs), expected=expected)
    fused: dict[str, Any] = {"fuse_s": 0.0} if no_fuse else {}
    if on == SIMULATED and given is not None:
        n_failed = predict(chain, given, asked, out, {"policy": policy, **fused}, quiet=quiet)
        raise typer.Exit(USAGE if given.problems else FAILED if n_failed else 0)
    options: dict[str, Any] = {
        "policy": policy,
        "journal": journal or default_folder(),
        "values_gib": values_gib,
        "metrics_port": metrics_port,
        "metrics_host": metrics_host,
        "profile": (profile,) if profile else (),
        "profile_lines": lines,
        **fused,
    }
    again = f"trimtab chain run {file}" + (f" --journal {journal}" if journal else "")
    with (
        resumable((KeyboardInterrupt, ClusterLost), again) as begun,
        _own_stdout() as stdout,
        _logged(log),
        _session(chain, on, workers, options, quiet=quiet) as session,
    ):
        if session.metrics_port is not None:
            note(f"metrics: http://{metrics_host}:{session.metrics_port}/metrics", quiet=quiet)
        if not session.is_compiled:
            note("decisions are interpreted, and slower: `trimtab warmup` compiles them once", quiet=quiet)
        if given is None:
            handle = session.resume(resume, retry_failed=retry_failed)
        else:
            handle = session.run(
                chain,
                given.values,
                priority=priority,
                deadline_s=float("inf") if deadline_s is None else deadline_s,
                tags=tags,
                key=key,
                source=file,
                places=InputPlaces.of(given.lines, given.unit),
            )
        begun.append(handle.id)
        note(f"run {handle.id}", quiet=quiet)
        n_failed = _finished(handle, given, out or stdout, files, failed, quiet=quiet)
        if session.models and not quiet:
            from trimtab.cli.chain_tables import told_models

            told_models(session.models)
        if profile:
            from trimtab.cli.chain_tables import told_profile

            suffix = ".lprof" if lines else ".prof"
            told_profile(session.profiles, profile, profile_out or Path(f"{profile}{suffix}"))
    if given is not None and given.problems:
        raise typer.Exit(USAGE)
    if n_failed:
        raise typer.Exit(FAILED)


def _session(chain: Chain, on: str, workers: str, options: Mapping[str, Any], *, quiet: bool) -> Session:
    """The session, once its workers are there."""
    from trimtab.chains.session import Session
    from trimtab.cli.output import spinner

    with spinner(f"starting workers ({on}) and opening the journal", quiet=quiet):
        return Session(chain, on=_backend(on, workers), **options)


@contextlib.contextmanager
def _own_stdout() -> Iterator[TextIO]:
    """stdout for results alone: what stages, their processes and Ray print goes to stderr."""
    results, sys.stdout = sys.stdout, sys.stderr
    results.flush()
    kept = os.dup(1)
    os.dup2(2, 1)  # for processes that begin now
    try:
        with os.fdopen(os.dup(kept), "w", encoding=results.encoding) as target:
            yield target if _is_first(results) else results
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        sys.stdout = results


def _is_first(stream: TextIO) -> bool:
    try:
        return stream.fileno() == 1
    except OSError:  # of a stream in memory
        return False


def _backend(on: str, workers: str) -> StageBackend:
    from trimtab.clusters.backends import backend, pool_of
    from trimtab.errors import UsageError

    try:
        nodes = pool_of(workers)
    except ValueError as error:
        raise UsageError(
            "not a number of workers", field="--workers", value=workers, expected=str(error)
        ) from None
    return backend(on, **nodes)


@contextlib.contextmanager
def _logged(path: Path | None) -> Iterator[None]:
    """Context in which the package's log goes to a file."""
    if path is None:
        yield
        return
    import logging

    from trimtab.gateway.observe.logs import JsonFormatter
    from trimtab.report.whole_files import refusals_of

    logger = logging.getLogger("trimtab")
    with refusals_of(path, "log"):
        handler = logging.FileHandler(path)
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


def _check_files(*paths: Path | None) -> None:
    """Check, before any work, that files can be written; pipes and devices are left alone."""
    from trimtab.report.whole_files import check_file

    for path in paths:
        if path is not None and (path.is_file() or path.is_dir() or not path.exists()):
            check_file(path)


def _tags(given: list[str]) -> dict[str, str]:
    from trimtab.errors import UsageError

    for text in given:
        if "=" not in text:
            raise UsageError("not a tag", field="--tag", value=text, expected="NAME=TEXT")
    return dict(text.split("=", 1) for text in given)


def _finished(
    handle: RunHandle,
    given: InputFile | None,
    out: Path | TextIO,
    files: Path | None,
    failed: Path | None,
    *,
    quiet: bool,
) -> int:
    """Write results as they come; returns how many inputs failed."""
    from trimtab.cli.chain_tables import shown_progress

    n_failed, is_lines = 0, not _is_table(out)
    lines = out if is_lines else None
    with _opened(lines) as target, shown_progress(handle, quiet=quiet), _failures(failed) as bad:
        for result in handle:
            if result.is_ok and target is None:
                continue
            if result.is_ok:
                print(_as_line(result, files), file=target, flush=True)
                continue
            n_failed += 1
            where = handle.places.told(result.index)
            note(f"input {where}: {result.failure}", quiet=quiet and bad is not None)
            if bad is not None:
                value = None if given is None else given.values[result.index]
                told = {"input": value, "error": str(result.failure)}
                print(json.dumps(told, default=repr), file=bad, flush=True)
    if isinstance(out, Path) and not is_lines:
        _write_table(out, handle, given)
    counted = {state.value: n for state, n in handle.endings.items()}
    note(f"{handle.id}: " + ", ".join(f"{n} {state}" for state, n in counted.items()), quiet=quiet)
    return n_failed


def _is_table(out: Path | TextIO) -> bool:
    from trimtab.chains.data_tables import is_table

    return isinstance(out, Path) and is_table(out)


def _write_table(out: Path, handle: RunHandle, given: InputFile | None) -> None:
    from trimtab.chains.data_tables import results_table, write_table

    if given is None or given.unit == "line":
        write_table(out, handle.table())
    else:
        write_table(out, results_table(handle.wait(), given.rows))


@contextlib.contextmanager
def _opened(out: Path | TextIO | None) -> Iterator[TextIO | None]:
    if isinstance(out, Path):
        with out.open("w") as file:
            yield file
    else:
        yield out


@contextlib.contextmanager
def _failures(failed: Path | None) -> Iterator[Any]:
    if failed is None:
        yield None
    else:
        with failed.open("w") as file:
            yield file


def _as_line(result: Result, files: Path | None) -> str:
    def told(value: Any) -> Any:
        if isinstance(value, bytes | bytearray | memoryview) and files is not None:
            files.mkdir(parents=True, exist_ok=True)
            path = files / f"{result.index}-{len(written)}"
            path.write_bytes(value)
            written.append(path)
            return str(path)
        if hasattr(value, "__dataclass_fields__"):
            return {name: getattr(value, name) for name in value.__dataclass_fields__}
        return f"<{type(value).__name__}>" if isinstance(value, bytes) else repr(value)

    written: list[Path] = []
    return json.dumps({"input": result.index, "output": result.value}, default=told, ensure_ascii=False)


def register(app: typer.Typer) -> None:
    """Add the commands to `trimtab chain`."""
    app.command(
        "run",
        epilog=examples(
            "trimtab chain run film.yaml --input prompts.jsonl",
            "trimtab chain run film.py:film --input prompts.txt --out films.jsonl --failed failed.jsonl",
            "trimtab chain run film.yaml --input prompts.parquet --out films.parquet",
            "trimtab chain run clean.py:clean --input rows.parquet --block-rows 10000 --out clean.parquet",
            "trimtab chain run film.yaml --input prompts.jsonl --profile draw --lines",
            "trimtab chain run film.yaml --resume run_0123456789abcdef --retry-failed",
            "trimtab chain run film.yaml --input prompts.jsonl --on kube://gpu-pool.yaml",
            "trimtab chain run film.yaml --input prompts.jsonl --on simulated --items scenes=6",
        ),
    )(run_chain)
