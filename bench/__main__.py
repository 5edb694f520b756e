"""`python -m bench`: measure, show, save; `python -m bench --docs`: write docs/benchmarks/simulator.md."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.catalogue import BENCHMARKS
from bench.figures import Effort
from bench.page import page
from bench.page_command import write_page
from bench.results import Result, load, measured, save
from bench.startup import ROOT
from bench.table import result_table
from trimtab.errors import TrimtabError

RESULTS, PAGE = ROOT / "bench" / "results.json", ROOT / "docs" / "benchmarks" / "simulator.md"


def _known(name: str) -> str:
    if name not in BENCHMARKS:
        raise argparse.ArgumentTypeError(f"no benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
    return name


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    about = "\n".join(f"  {name:14} {b.title}" for name, b in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        "python -m bench",
        description=__doc__,
        epilog=f"benchmarks:\n{about}",
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", type=_known, help="benchmarks; all by default")
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, to see that everything works; not saved"
    )
    parser.add_argument("--out", type=Path, help=f"where to save (default: {RESULTS.relative_to(ROOT)})")
    parser.add_argument(
        "--docs", action="store_true", help=f"write {PAGE.relative_to(ROOT)} from what is saved"
    )
    return parser.parse_args(given)


def _measure(names: Sequence[str], effort: Effort) -> dict[str, Result]:
    results = {}
    for name in names:
        print(f"{name} …", file=sys.stderr, flush=True)
        results[name] = measured(BENCHMARKS[name], effort)
        print(f"{name}: {results[name].took_s:.0f} s", file=sys.stderr)
    return results


def _merged(out: Path, new: dict[str, Result]) -> dict[str, Result]:
    """The figures to save, new ones in place of old, in the order of the catalogue."""
    known = {**(load(out) if out.exists() else {}), **new}
    return {name: known[name] for name in BENCHMARKS if name in known}


def _write_docs(results: Path) -> None:
    write_page(PAGE, page(load(results)))


def main(given: Sequence[str] | None = None) -> int:
    """Exit code: 0, or 2 where an argument or a file is wrong."""
    arguments = _arguments(given)
    try:
        if arguments.docs:
            _write_docs(arguments.out or RESULTS)
            return 0
        new = _measure(arguments.names or list(BENCHMARKS), Effort(arguments.quick))
        out = arguments.out or (None if arguments.quick else RESULTS)
        if out is not None:
            save(out, _merged(out, new))
    except TrimtabError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    Console(width=None if sys.stdout.isatty() else 150, highlight=False).print(result_table(new))
    if out is not None:
        print(f"saved in {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
