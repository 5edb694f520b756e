"""Makes a film in this process, without workers: `python -m trimtab_film "a white rabbit"`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from trimtab.errors import TrimtabError
from trimtab_film.film import Film, probe
from trimtab_film.film_stages import Painter, Story, Voice

PROMPT = "a curious orange fox, a blue balloon and a red lighthouse on the beach"


def main() -> int:
    """Make the film and say what it holds and how long each stage took."""
    parser = argparse.ArgumentParser(prog="python -m trimtab_film", description=__doc__)
    parser.add_argument("prompt", nargs="?", default=PROMPT)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("film.mp4"))
    given = parser.parse_args()
    try:
        make_film(given.prompt, given.seed, given.out)
    except TrimtabError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def make_film(prompt: str, seed: int, out: Path) -> None:
    """Run the four stages after each other."""
    began_s = time.perf_counter()
    story, painter, voice, film = Story(), Painter(), Voice(), Film()
    began_s = _report("models loaded", began_s)
    panels = story(prompt, seed)
    began_s = _report("story", began_s)
    pictures = painter.paint([panel["caption"] for panel in panels], seed)
    began_s = _report("pictures", began_s)
    speech = [voice(panel) for panel in panels]
    began_s = _report("speech", began_s)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(film(panels, pictures, speech))
    _report("film", began_s)
    for panel in panels:
        print(f"  {panel['sentence']}")
    print(f"{out}: {probe(out.read_bytes())}")


def _report(what: str, began_s: float) -> float:
    now_s = time.perf_counter()
    print(f"{what}: {now_s - began_s:.1f} s", flush=True)
    return now_s


if __name__ == "__main__":
    raise SystemExit(main())
