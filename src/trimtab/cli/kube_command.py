"""`trimtab kube`: trimtab inside Kubernetes, as an extender of kube-scheduler or as a scheduler beside it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli import completion
from trimtab.cli.cluster_options import (
    DEFAULT_POLICY,
    KEPT,
    DryRun,
    Duration,
    Policy,
    Record,
    Seed,
    decider,
    note_degraded,
    note_findings,
    note_times,
    show_findings,
)
from trimtab.cli.option_groups import examples, grouped
from trimtab.cli.output import note, print_json
from trimtab.cli.shared_options import Json, Quiet

if TYPE_CHECKING:
    from trimtab.clusters.findings import Finding
    from trimtab.clusters.kube.api import KubeApi
    from trimtab.clusters.kube.checks import Right
    from trimtab.clusters.kube.lease import Lease
    from trimtab.clusters.kube.mirror import Mirror

SERVER_PANEL = "API server"
app = typer.Typer(
    no_args_is_help=True,
    help="Decide in Kubernetes: as an extender of kube-scheduler, or as a scheduler of its own.",
    epilog=examples(
        "trimtab kube check", "trimtab kube extender --listen 0.0.0.0:8899", "trimtab kube scheduler"
    ),
)
Preempt = Annotated[
    bool, typer.Option("--preempt", help="Evict pods of lower priority for pods that fit nowhere.")
]
NoLease = Annotated[bool, typer.Option("--no-lease", help="Act without asking whether another copy does.")]


@dataclass(frozen=True)
class Server:
    """Options of the API server."""

    kubeconfig: Annotated[
        str,
        typer.Option(
            help="File.  [dim]Default: $KUBECONFIG, ~/.kube/config, or the pod's service account[/dim]",
            metavar="FILE",
            rich_help_panel=SERVER_PANEL,
            show_default=False,
        ),
    ] = ""
    context: Annotated[
        str, typer.Option(help="Of that file.", rich_help_panel=SERVER_PANEL, show_default=False)
    ] = ""
    qps: Annotated[float, typer.Option(help="Calls a second.", min=1, rich_help_panel=SERVER_PANEL)] = 50.0
    burst: Annotated[float, typer.Option(help="Calls at once.", min=1, rich_help_panel=SERVER_PANEL)] = 100.0


@dataclass(frozen=True)
class LeaseOptions:
    """Options of the Lease by which one copy of several is active."""

    no_lease: NoLease = False
    lease_namespace: Annotated[str, typer.Option(help="Namespace of the Lease.")] = "kube-system"


@app.command("scheduler", epilog=examples(
    "trimtab kube scheduler",
    "trimtab kube scheduler --policy best-fit+priority-ageing --qps 1000 --burst 2000",
    "trimtab kube scheduler --record trace/  &&  trimtab compare --trace trace/",
))  # fmt: skip
@grouped
def scheduler(
    policy: Policy = DEFAULT_POLICY,
    name: Annotated[str, typer.Option(help="The `schedulerName` of the pods that it binds.")] = "trimtab",
    preempt: Preempt = False,
    record: Record = None,
    seed: Seed = 0,
    lease: LeaseOptions = LeaseOptions(),
    server: Server = Server(),
    quiet: Quiet = False,
) -> None:
    """Bind pods with `schedulerName: trimtab` to nodes that a policy chooses."""
    from trimtab.clusters.kube.checks import rights_of

    took_s: deque[float] = deque(maxlen=KEPT)

    async def serve() -> None:
        from trimtab.clusters.kube.scheduler import Scheduler

        async with await _connected(server) as api:
            own = None if lease.no_lease else _lease(api, lease, name)
            await _refuse_lacking(api, rights_of("scheduler", own, preempts=preempt), quiet=quiet)
            made = Scheduler(
                api,
                decider(policy),
                name=name,
                lease=own,
                preempts=preempt,
                seed=seed,
                tell=took_s.append,
                begun=lambda: note(f"scheduling pods of {name} by {policy}", quiet=quiet),
            )
            note_degraded(made.degraded, quiet=quiet)
            try:
                with _recorded(record, made.mirror, policy):
                    await made.run()
            finally:
                if own is not None:
                    await own.release()

    _run(serve())
    note_times(took_s, "bound", "pod", "a binding", quiet=quiet)


@app.command("extender", epilog=examples(
    "trimtab kube extender --listen 127.0.0.1:8899",
    "curl http://127.0.0.1:8899/explain/default/my-pod",
))  # fmt: skip
@grouped
def extender(
    policy: Policy = DEFAULT_POLICY,
    listen: Annotated[
        str, typer.Option(help="Address for kube-scheduler.", metavar="HOST:PORT")
    ] = "127.0.0.1:8899",
    record: Record = None,
    seed: Seed = 0,
    server: Server = Server(),
    quiet: Quiet = False,
) -> None:
    """Filter and score nodes for kube-scheduler, which keeps its own filters and binds."""
    from trimtab.clusters.kube.checks import rights_of

    host, port = _address(listen)

    async def serve() -> None:
        from aiohttp import web

        from trimtab.clusters.kube.extender import Extender

        async with await _connected(server) as api:
            await _refuse_lacking(api, rights_of("extender"), quiet=quiet)
            made = Extender(api, decider(policy), seed=seed)
            note_degraded(made.degraded, quiet=quiet)
            runner = web.AppRunner(made.app(), access_log=None)
            await runner.setup()
            with _recorded(record, made.mirror, policy):
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(made.mirror.run())
                    await (
                        made.mirror.synced()
                    )  # kube-scheduler meets a closed port until then, and tries again
                    await web.TCPSite(runner, host, port).start()
                    note(f"listening on {listen}", quiet=quiet)

    _run(serve())


@app.command("record", epilog=examples(
    "trimtab kube record trace/ && trimtab compare --trace trace/",
    "trimtab kube record trace/ --dry-run --policy best-fit",
))  # fmt: skip
@grouped
def record_cluster(
    folder: Annotated[Path, typer.Argument(help="Where the trace goes.", metavar="FOLDER")],
    dry_run: DryRun = False,
    policy: Policy = DEFAULT_POLICY,
    duration_s: Duration = 0.0,
    seed: Seed = 0,
    server: Server = Server(),
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a trace of a running cluster; decides nothing."""
    from trimtab.clusters.kube.checks import rights_of

    counts: dict[str, Any] = {}

    async def watch() -> None:
        from trimtab.clusters.kube.dry_run import DryRun
        from trimtab.clusters.kube.mirror import Mirror

        async with await _connected(server) as api:
            await _refuse_lacking(api, rights_of("record"), quiet=quiet)
            mirror = Mirror(api)
            run = DryRun(mirror, decider(policy), folder, seed=seed) if dry_run else None
            try:
                with _recorded(folder, mirror, "kubernetes"), contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(duration_s or None), asyncio.TaskGroup() as tasks:
                        tasks.create_task(mirror.run())
                        await mirror.synced()
                        note(f"recording into {folder}", quiet=quiet)
            finally:
                counts["trace"] = str(folder)
                if run is not None:
                    run.log.close()
                    counts.update(run.log.counts, regret_stranded_milli=round(run.log.regret_milli, 3))

    _run(watch())
    if json:
        print_json(counts)
    elif dry_run:
        print(
            f"{counts['placed']} pods bound; {counts['same']} where {policy} would; "
            f"{counts['none']} where it would not; "
            f"regret {counts['regret_stranded_milli']:g} thousandths of GPUs stranded"
        )
    note(f"recorded: trimtab compare --trace {folder}", quiet=quiet or json)


@app.command("train", epilog=examples(
    "kubectl apply -f deploy/kube/trainingjobs.yaml",
    "trimtab kube train --journal /runs --pods kube.yaml --policy tiresias",
    "kubectl get trainingjobs",
))  # fmt: skip
def train(
    journal: Annotated[
        Path, typer.Option(help="Folder of runs, which pods see at the same path.", metavar="FOLDER")
    ],
    pods: Annotated[Path, typer.Option(help="How pods are made, as of --on kube.", metavar="FILE")] = Path(
        "kube.yaml"
    ),
    policy: Annotated[
        str,
        typer.Option("--policy", "-p", help="Allocator.", autocompletion=completion.allocators),
    ] = "srtf",
    rules: Annotated[
        Path | None,
        typer.Option(help="File of the rules that `train run` has, such as grace_s: 60.", metavar="FILE"),
    ] = None,
    no_lease: NoLease = False,
    quiet: Quiet = False,
) -> None:
    """Run TrainingJob objects on GPUs that an allocator shares out, from checkpoint to checkpoint."""
    from trimtab.clusters.kube.job_objects import serve_training_jobs
    from trimtab.training.runner.job_list import read_rules

    serve_training_jobs(
        str(pods),
        journal.absolute(),
        policy,
        read_rules(rules),
        lambda text: note(text, quiet=quiet),
        has_lease=not no_lease,
    )


@app.command("check", epilog=examples("trimtab kube check", "trimtab kube check --mode extender"))
@grouped
def check_cluster(
    mode: Annotated[str, typer.Option(help="scheduler, extender or record.")] = "scheduler",
    name: Annotated[str, typer.Option(help="The scheduler's name.")] = "trimtab",
    preempt: Preempt = False,
    lease: LeaseOptions = LeaseOptions(),
    server: Server = Server(),
    json: Json = False,
) -> None:
    """Say what the cluster lacks before anything starts: rights, GPUs, APIs, the clock, the Lease."""
    from trimtab.clusters.kube.checks import MODES, check, rights_of
    from trimtab.errors import UsageError

    if mode not in MODES:
        raise UsageError("no such mode", field="--mode", value=mode, expected=", ".join(MODES))
    found: list[Finding] = []

    async def look() -> None:
        async with await _connected(server) as api:
            own = None if lease.no_lease or mode != "scheduler" else _lease(api, lease, name)
            found.extend(await check(api, rights_of(mode, own, preempts=preempt), own))  # type: ignore[arg-type]

    _run(look())
    show_findings(found, json=json)


def _address(text: str) -> tuple[str, int]:
    from trimtab.errors import UsageError

    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError("is no address", field="--listen", value=text, expected="HOST:PORT")
    return host.strip("[]"), int(port)


async def _connected(server: Server) -> KubeApi:
    from trimtab.clusters.kube.api import KubeApi

    return await KubeApi.connect(server.kubeconfig, server.context, qps=server.qps, burst=server.burst)


def _lease(api: KubeApi, options: LeaseOptions, name: str) -> Lease:
    from trimtab.clusters.kube.lease import Lease

    return Lease(api, options.lease_namespace, f"{name}-scheduler")


async def _refuse_lacking(api: KubeApi, rights: tuple[Right, ...], *, quiet: bool) -> None:
    """Say what `kube check` says; what is a problem for good ends the command."""
    from trimtab.clusters.kube.checks import check

    note_findings(await check(api, rights, None), "trimtab kube check", quiet=quiet)


@contextlib.contextmanager
def _recorded(folder: Path | None, mirror: Mirror, policy: str) -> Any:
    from trimtab.clusters.kube.pod_recording import PodRecording

    if folder is None:
        yield
        return
    recording = PodRecording(mirror, folder, policy)
    try:
        yield
    finally:
        recording.close()


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run until it ends, or until SIGTERM or Ctrl-C asks for the end, which is how a service ends."""

    async def stoppable() -> None:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    from trimtab.live.event_loop import new_runner

    try:
        with new_runner() as runner:
            runner.run(stoppable())
    except BaseExceptionGroup as group:
        raise _first(group) from None


def _first(error: BaseException) -> BaseException:
    """The first error in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
