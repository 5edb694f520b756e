"""The command `trimtab`: its subcommands, and the conversion of failures into messages and exit codes.

Where a package that a command needs is not installed, the message names the extra that has it.
"""

from __future__ import annotations

import atexit
import errno
import gc
import logging
import os
import re
import signal
import sys
import traceback
from importlib.metadata import requires
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from trimtab.cli import (
    advise_command,
    allocate_command,
    case_command,
    chain_command,
    compare_command,
    epp_command,
    federate_command,
    fit_command,
    forecast_command,
    kube_command,
    learn_command,
    policies_command,
    profile_command,
    replay_command,
    rerun_command,
    run_command,
    scenario_command,
    serve_command,
    size_command,
    slurm_command,
    solve_command,
    trace_command,
    train_command,
    tune_command,
    warmup_command,
    yarn_command,
)
from trimtab.cli.option_groups import EXIT_CODES, INTERRUPTED, examples
from trimtab.errors import MissingExtra, TrimtabError
from trimtab.version import __version__

DEBUG = "TRIMTAB_DEBUG"
FULL = errno.ENOSPC, errno.EDQUOT, errno.EROFS
EXTRA_OF: Final = {
    "serve": "serve",
    "epp": "envoy",
    "chain": "chains",
    "train": "jobs",
    "kube": "kube",
    "learn": "learn",
    "federate": "serve",
}  # command → extra with all it needs


def missing_extra(command: str | None, error: ImportError | MissingExtra) -> MissingExtra | None:
    """The error in the words of a command: with the extra that has all that the command needs.

    None for a module that trimtab does not ask for.
    """
    packages = _packages_of_extras()
    told = EXTRA_OF.get(command or "", "")
    if isinstance(error, MissingExtra):
        found = re.search(r"trimtab\[([\w-]+)\]", error.expected or "")
        if found is None or not packages.get(found[1], {found[1]}) <= packages.get(told, set()):
            return error
        return MissingExtra(error.problem, field=error.field, value=error.value, expected=_install(told))
    module = (error.name or "").partition(".")[0]
    having = [
        extra
        for extra, names in packages.items()
        if any(f"{name}_".startswith(f"{module}_") for name in names)
    ]
    if not module or not having:
        return None
    extra = told if told in having else min(having, key=lambda each: len(packages[each]))
    return MissingExtra(f"`trimtab {command}` needs {module}", expected=_install(extra))


def _install(extra: str) -> str:
    return f"pip install 'trimtab[{extra}]'" if extra else "pip install trimtab"


def _packages_of_extras() -> dict[str, set[str]]:
    """Extra → packages that it brings, as they are imported; "" for those of no extra."""
    found: dict[str, set[str]] = {}
    for line in requires("trimtab") or ():
        package, extra = re.match(r"[\w.-]+", line), re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if package is not None:
            found.setdefault(extra[1] if extra else "", set()).add(package[0].replace("-", "_").lower())
    return found


def _is_debugging() -> bool:
    return os.environ.get(DEBUG, "") not in ("", "0")


def _say(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr)


def _told(error: TrimtabError, ctx: Any) -> typer.Exit:
    """The end of the command, once its error is printed."""
    if _is_debugging():
        traceback.print_exc()
    if isinstance(error, MissingExtra):
        error = missing_extra(ctx.invoked_subcommand, error) or error
    _say(f"error: {error}", *getattr(error, "__notes__", ()))
    return typer.Exit(error.exit_code)


def _full(error: OSError) -> TrimtabError:
    """A full disk is no fault of trimtab."""
    of = f": {error.filename}" if error.filename is not None else ""
    told = TrimtabError(f"{error.strerror}{of}")
    for line in getattr(error, "__notes__", ()):
        told.add_note(line)
    return told


def _hide_placeholders(command: Any) -> None:
    """Show the flags of a command, and of all below it, without a value: typer would show <bool>."""
    params_of = command.get_params

    def get_params(ctx: Any) -> Any:
        found = params_of(ctx)
        for parameter in found:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return found

    command.get_params = get_params
    for inner in getattr(command, "commands", {}).values():
        _hide_placeholders(inner)


class Commands(TyperGroup):
    """The commands; errors of trimtab and Ctrl-C become a message and an exit code."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _hide_placeholders(self)

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except TrimtabError as error:
            raise _told(error, ctx) from None
        except ImportError as error:
            found = missing_extra(ctx.invoked_subcommand, error)
            if found is None:
                raise
            raise _told(found, ctx) from None
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise _told(_full(error), ctx) from None
        except KeyboardInterrupt as error:
            _say("interrupted", *getattr(error, "__notes__", ()))
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    name="trimtab",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "trimtab compare                          the built-in scenario, all policies",
        "trimtab compare tiny --policy random --policy least-expected-wait+edf",
        "trimtab scenario show tiny > my.yaml     a scenario to edit",
    )
    + EXIT_CODES,
)
compare_command.register(app)
advise_command.register(app)
allocate_command.register(app)
run_command.register(app)
replay_command.register(app)
rerun_command.register(app)
size_command.register(app)
tune_command.register(app)
case_command.register(app)
serve_command.register(app)
epp_command.register(app)
app.add_typer(policies_command.policies_app, name="policies")
app.command("metrics", epilog=examples("trimtab metrics --json"))(policies_command.metrics)
app.add_typer(chain_command.app, name="chain")
app.add_typer(train_command.app, name="train")
app.add_typer(learn_command.app, name="learn")
app.add_typer(kube_command.app, name="kube")
app.add_typer(yarn_command.app, name="yarn")
app.add_typer(slurm_command.app, name="slurm")
app.add_typer(scenario_command.app, name="scenario")
app.add_typer(trace_command.app, name="trace")
app.add_typer(solve_command.app, name="solve")
app.add_typer(federate_command.app, name="federate")
fit_command.register(app)
app.add_typer(profile_command.app, name="profile")
forecast_command.register(app)
warmup_command.register(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"trimtab {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log to stderr.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help=f"Show the traceback of an error (also {DEBUG}=1).")
    ] = False,
) -> None:
    """trimtab schedules AI work: which node serves each request, and how balanced and fast that was."""
    if verbose:
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    if debug:
        os.environ[DEBUG] = "1"  # worker processes inherit it


def _interrupt(*_: object) -> None:
    """Exit as on Ctrl-C, so that workers exit too; only once, because `timeout` sends its signal twice."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> None:
    """Run the command line; always ends in SystemExit with one of the exit codes of `--help`."""
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _interrupt)
    atexit.register(gc.freeze)  # the interpreter would search all of Numba for cycles as it ends: 0.5 s
    try:
        typer.main.get_command(app)(prog_name="trimtab")
    except SystemExit as end:
        if end.code == INTERRUPTED:  # a further Ctrl-C ends what is left at once, without a traceback
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        raise
    except Exception as error:
        if _is_debugging():
            raise
        if isinstance(error, MemoryError):
            _say(f"error: not enough memory: {error}; expected fewer requests, nodes, seeds or --jobs")
            raise SystemExit(2) from error
        _say(
            f"internal error: {type(error).__name__}: {error}",
            "this is a fault of trimtab; --debug shows where it comes from",
        )
        sys.exit(1)
