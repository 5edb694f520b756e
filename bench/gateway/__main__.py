"""`python -m bench.gateway`: the gateway beside other proxies; `--docs` writes its page in docs/."""

from __future__ import annotations

import argparse
import dataclasses
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.figures import Effort
from bench.gateway.contests import contests
from bench.gateway.course import Course, program_version
from bench.gateway.interpreters import build_of, run_by
from bench.gateway.page import page
from bench.gateway.pinned import can_pin
from bench.gateway.proxies import PROXIES, Proxy
from bench.page_command import write_page
from bench.results import Result, load, measured, save
from bench.startup import ROOT
from bench.table import result_table
from trimtab.errors import TrimtabError

RESULTS, PAGE = ROOT / "bench" / "gateway.json", ROOT / "docs" / "benchmarks" / "gateway.md"
CONTESTS = tuple(contests(Course(())))


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m bench.gateway", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="CONTEST", help=f"all by default: {', '.join(CONTESTS)}")
    names = [proxy.name for proxy in PROXIES]
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", choices=names, help=f"proxies: {', '.join(names)}"
    )
    parser.add_argument("--quick", action="store_true", help="tiny, to see that everything works; not saved")
    parser.add_argument(
        "--python",
        metavar="PROGRAM",
        help="runs trimtab and litellm; of this one's minor version (default: it)",
    )
    parser.add_argument("--out", type=Path, help=f"where to save (default: {RESULTS.relative_to(ROOT)})")
    parser.add_argument(
        "--docs", action="store_true", help=f"write {PAGE.relative_to(ROOT)} from what is saved"
    )
    arguments = parser.parse_args(given)
    unknown = set(arguments.names) - set(CONTESTS)
    if unknown:
        parser.error(f"no contest {', '.join(sorted(unknown))}; there are {', '.join(CONTESTS)}")
    return arguments


def _versions(proxies: Sequence[Proxy], python: str | None) -> dict[str, str]:
    """Of the programs that are measured."""
    found = {
        p.name.split(" ")[0]: program_version(p) for p in proxies if p.is_installed and p.name != "trimtab"
    }
    return {**found, "trimtab and litellm run by Python": build_of(python)} if python else found


def _merge_into(out: Path, new: dict[str, Result]) -> None:
    known = {**(load(out) if out.exists() else {}), **new}
    save(out, {name: known[name] for name in CONTESTS if name in known})


def main(given: Sequence[str] | None = None) -> int:
    """Exit code: 0, or 2 where an argument or a file is wrong."""
    arguments = _arguments(given)
    out = arguments.out or (None if arguments.quick else RESULTS)
    if arguments.docs:
        write_page(PAGE, page(load(arguments.out or RESULTS)))
        return 0
    if not can_pin():
        print("error: two cores and `taskset` are needed", file=sys.stderr)
        return 2
    proxies = [p for p in PROXIES if not arguments.only or p.name in arguments.only]
    if arguments.python:
        proxies = [run_by(proxy, arguments.python) for proxy in proxies]
    for number in (signal.SIGTERM, signal.SIGINT):  # proxies have sessions of their own: they must be ended
        signal.signal(number, lambda *_: sys.exit(1))
    effort, new = Effort(arguments.quick), dict[str, Result]()
    versions = _versions(proxies, arguments.python)
    for name in arguments.names or CONTESTS:
        print(f"{name} …", file=sys.stderr, flush=True)
        course = Course(proxies)  # of its own, or a shadow's replay (each 900 s) falls into a later contest
        try:
            done = measured(contests(course)[name], effort)
        finally:
            course.close()
        new[name] = dataclasses.replace(done, versions={**done.versions, **versions})
        print(f"{name}: {done.took_s:.0f} s", file=sys.stderr)
        if out is not None:  # each at once: all together take half an hour
            _merge_into(out, new)
    Console(width=None if sys.stdout.isatty() else 150, highlight=False).print(result_table(new))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TrimtabError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
