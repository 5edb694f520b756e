"""A file's name says what is in it: no two files of one name with different meanings."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "trimtab"

SAME_MEANING = {
    "__init__.py": "a package",
    "__main__.py": "what `python -m` runs",
    "compilation.py": "compiles the kernels of a room beforehand",
    "edf.py": "earliest deadline first, of requests and of training jobs",
    "errors.py": "the errors of a room",
    "progress.py": "how far the work of a run has got",
    "sjf.py": "shortest first, of requests and of training jobs",
}


def test_no_name_has_two_meanings() -> None:
    places = defaultdict(list)
    for file in sorted(SOURCE.rglob("*.py")):
        places[file.name].append(str(file.relative_to(SOURCE)))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert {n: found for n, found in twice.items() if n not in SAME_MEANING} == {}


def test_no_name_says_nothing() -> None:
    assert not [f for f in SOURCE.rglob("*.py") if f.stem in {"utils", "util", "helpers", "misc", "common"}]


def test_no_two_files_of_tests_share_a_name() -> None:
    """pytest imports them by this name alone: the second would end the run of the whole suite."""
    counts = Counter(file.name for file in Path(__file__).parents[1].rglob("test_*.py"))
    assert [name for name, count in counts.items() if count > 1] == []
