"""`trimtab learn`: train weights for policies, judge them on workloads that they never saw, write them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from trimtab.cli import completion, lengths_command, transfer_command
from trimtab.cli.option_groups import examples, grouped
from trimtab.cli.output import note, print_json, progress_bar, show, where
from trimtab.cli.serve_command import refuse_missing
from trimtab.cli.shared_options import Json, Quiet, Report, out_option
from trimtab.cli.training_folder import (
    CHECKPOINT,
    NEEDED,
    WEIGHTS,
    check_folder,
    last_loss,
    tell_training,
    train_in,
    write_training,
)

if TYPE_CHECKING:
    from rich.table import Table

    from trimtab.domain.artifact import Artifact
    from trimtab.experiments.scenario import Scenario
    from trimtab.learn.judgement import Change, Judged
    from trimtab.learn.weight_search import PolicyName

Known = TypeVar("Known", bound=str)
DEFAULT_OUT = Path("trimtab-learned")
BESIDE = ("least-expected-completion", "auto")

app = typer.Typer(
    no_args_is_help=True,
    help="Train weights for policies on simulated runs, and judge them (extra learn).",
    epilog=examples(
        "trimtab learn train --policy learned-residual --out trained",
        "trimtab learn evaluate trained/weights.safetensors",
        "trimtab learn export trained --out mine.safetensors",
        "trimtab learn lengths trace.csv --epsilon 1",
        "trimtab learn transfer mine.safetensors --to aigc-images",
        "trimtab compare aigc-images --policy late-binding "
        "--policy 'learned-residual(artifact=mine.safetensors)'",
    ),
)
transfer_command.register(app)
lengths_command.register(app)

Workload = Annotated[
    str | None,
    typer.Argument(
        help="Built-in scenario or YAML file; without one, clusters drawn from a family.",
        metavar="SCENARIO",
        autocompletion=completion.scenarios,
    ),
]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes that simulate.")]


@app.command(
    "train",
    epilog=examples(
        "trimtab learn train --out trained",
        "trimtab learn train aigc-images --policy learned-dispatch --generations 200 --jobs 8",
        "trimtab learn train --objective 'mean+2*p99' --seed 1 --out trained-1",
        "trimtab learn train --method ppo --policy learned-dispatch --generations 40 --out trained-ppo",
        "trimtab learn train --method imitate-plans --generations 20 --out trained-matching",
        "trimtab learn train --method transformer --generations 40 --out trained-transformer",
        "tensorboard --logdir trained",
    ),
)
@grouped
def train(
    scenario: Workload = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            "-p",
            help="learned-residual (by default) or learned-dispatch by es; each other method trains one.",
            show_default=False,
            metavar="POLICY",
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            help="es (evolution strategies); a2c, ppo or dqn, which train learned-dispatch only; "
            "imitate-plans or imitate-schedules (learned-matching), rnn (learned-pointer), transformer "
            "(learned-transformer).",
            metavar="METHOD",
        ),
    ] = "es",
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective",
            help="Sum of mean, p99 and tail (the longest 2 %), each relative to the rule without weights; "
            "without it mean+0.5*tail by es, and mean by the others, which lower nothing else.",
            metavar="OBJECTIVE",
        ),
    ] = None,
    generations: Annotated[
        int,
        typer.Option(
            "--generations",
            min=1,
            help="Steps of es; 51,200 decisions each by a2c, ppo and dqn; six runs each by imitation; 512 "
            "instances each by rnn and transformer.",
        ),
    ] = 100,
    pairs: Annotated[
        int, typer.Option("--pairs", min=1, help="Mirrored pairs of candidates a step of es.")
    ] = 12,
    hidden: Annotated[
        int | None,
        typer.Option(
            "--hidden",
            min=0,
            max=1024,
            help="Hidden units, by default 8; 0 = a linear rule. By imitation, rnn and transformer an even "
            "number, by default 16.",
            show_default=False,
        ),
    ] = None,
    requests: Annotated[
        int, typer.Option("--requests", min=100, max=1_000_000, help="Of a drawn cluster.")
    ] = 800,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the search and its workloads.")] = 0,
    jobs: Jobs = 1,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Go on from the checkpoint in the folder.")
    ] = True,
    out: Annotated[Path, out_option()] = DEFAULT_OUT,
    report: Report = True,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train weights by evolution strategies, reinforcement learning, imitation, or optimal schedules."""
    from trimtab.learn.drawn_workloads import Objective, Workloads, processes
    from trimtab.learn.transfer import trained_by
    from trimtab.learn.weight_search import METHODS, Setting

    known = _one_of(METHODS, method, "--method", "is no method")
    trains = METHODS[known]
    policy = trains.policies[0] if policy is None else policy
    setting = Setting(
        _trained_policy(policy),
        Objective.parsed(trains.objective if objective is None else objective),
        Workloads(_scenario(scenario), requests),
        generations,
        pairs,
        trains.hidden if hidden is None else hidden,
        seed=seed,
        method=known,
    )
    check_folder(out, report=report)
    with processes(jobs) as pool:
        search = trained_by(setting, pool)
        artifact = train_in(out, search, policy, resume=resume, quiet=quiet or json)
    title = f"Training {policy} on {setting.workloads}"
    write_training(out, search, artifact, title, setting.told(), report=report)
    if json:
        written = {"weights": str(out / WEIGHTS), "sha256": artifact.sha256}
        print_json({**setting.told(), "loss": last_loss(search), **written})
        return
    tell_training(out, search, policy, report=report, quiet=quiet)
    note(f"judge it on workloads that it never saw: trimtab learn evaluate {out / WEIGHTS}", quiet=quiet)


@app.command(
    "evaluate",
    epilog=examples(
        "trimtab learn evaluate trained/weights.safetensors",
        "trimtab learn evaluate trained/weights.safetensors --workloads 100 --jobs 8 --json",
        "trimtab learn evaluate mine.safetensors aigc-images --workloads 10",
    ),
)
@grouped
def evaluate(
    weights: Annotated[
        Path, typer.Argument(help="File of `learn train` or `learn export`.", metavar="WEIGHTS")
    ],
    scenario: Workload = None,
    workloads: Annotated[int, typer.Option("--workloads", min=2, help="How many.")] = 30,
    requests: Annotated[
        int, typer.Option("--requests", min=100, max=1_000_000, help="Of a drawn cluster.")
    ] = 1500,
    jobs: Jobs = 1,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Judge weights beside rules on workloads that no training saw: mean and p99, with the losses."""
    refuse_missing("learn", NEEDED, "learn")
    from trimtab.domain.artifact import Artifact
    from trimtab.learn.drawn_workloads import Workloads, processes
    from trimtab.learn.judgement import UNSEEN, judged
    from trimtab.learn.weight_search import CORRECTED, RULES

    policy = _policy_of(Artifact.read(str(weights)))
    given = f"artifact={weights}"
    policies = [f"{policy}({given})", *BESIDE]
    if policy in CORRECTED:
        policies.insert(1, f"{policy}({given},bound=inf,in_range=false)")
    if policy == "learned-residual":
        policies.insert(1, f"learned-guarded({given})")
    if RULES[policy] not in (*BESIDE, "late-binding"):
        policies.append(RULES[policy])
    of, numbers = Workloads(_scenario(scenario), requests), range(UNSEEN, UNSEEN + workloads)
    with processes(jobs) as pool, progress_bar("judging", quiet=quiet or json) as progress:
        found = judged(policies, of, numbers, pool=pool, progress=progress)
    if json:
        print_json(
            {"workloads": workloads, "against": "late-binding", "policies": [j.to_dict() for j in found]}
        )
        return
    print(f"completion against late-binding on {workloads} of {of} that no training saw, 95 % intervals")
    show(_judged_table(found))


@app.command(
    "export",
    epilog=examples(
        "trimtab learn export trained --out mine.safetensors",
        "trimtab serve gateway.yaml --policy 'learned-residual(artifact=mine.safetensors)'",
    ),
)
@grouped
def export(
    folder: Annotated[Path, typer.Argument(help="Folder of `learn train`.", metavar="FOLDER")],
    out: Annotated[Path, typer.Option("--out", help="File to write.", metavar="FILE")] = Path(WEIGHTS),
    quiet: Quiet = False,
) -> None:
    """Write the weights of a finished training as a file that policies take in every host."""
    refuse_missing("learn", NEEDED, "learn")
    from trimtab.domain.artifact import Artifact
    from trimtab.errors import UsageError
    from trimtab.learn.weight_search import POLICIES
    from trimtab.report.whole_files import write_bytes

    if not (folder / WEIGHTS).exists():
        begun = (folder / CHECKPOINT).exists()
        expected = (
            "a training that has ended: go on with `trimtab learn train`" if begun else "a folder of it"
        )
        raise UsageError("has no weights", file=str(folder), field=WEIGHTS, expected=expected)
    artifact = Artifact.read(str(folder / WEIGHTS))
    policy = _policy_of(artifact)
    POLICIES[policy](artifact=artifact)  # refuses weights of another version
    write_bytes(out, artifact.content())
    note(where(out, out.stat().st_size), quiet=quiet)
    print(f"{policy}(artifact={out})")


def _scenario(name: str | None) -> Scenario | None:
    from trimtab.experiments.scenario import resolve_scenario

    return None if name is None else resolve_scenario(name)


def _trained_policy(name: str) -> PolicyName:
    from trimtab.learn.weight_search import POLICIES

    return _one_of(POLICIES, name, "--policy", "takes no weights")


def _policy_of(artifact: Artifact) -> PolicyName:
    from trimtab.learn.weight_search import POLICIES

    told = artifact.meta.get("policy", "nothing")
    return _one_of(POLICIES, told, "policy", "was trained for something else", artifact.path)


def _one_of(known: Iterable[Known], name: str, field: str, problem: str, file: str | None = None) -> Known:
    from trimtab.errors import UsageError

    for one in known:
        if name == one:
            return one
    raise UsageError(problem, file=file, field=field, value=name, expected=f"one of {', '.join(known)}")


def _judged_table(found: list[Judged]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("policy", overflow="fold")
    for column in ("mean %", "p99 %", "worst\nmean %", "more than\n5 % worse"):
        table.add_column(column, justify="right", no_wrap=True)
    for one in found:
        share = f"{100 * one.worse_share:.0f} %"
        table.add_row(one.policy, _text(one.mean), _text(one.p99), f"{100 * one.mean.worst_frac:+.0f}", share)
    return table


def _text(change: Change) -> str:
    return f"{100 * change.frac:+.1f}\n({100 * change.low_frac:+.1f} to {100 * change.high_frac:+.1f})"
