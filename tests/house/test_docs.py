"""Pages made from the code say what the code says; commands, packages and links in written pages exist."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from bench import ages
from trimtab.cli.app import app

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/trimtab"
WRITTEN = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "GLOSSARY.md")),
    ROOT / "docs/index.md",
    *(
        page
        for room in ("start", "guides", "concepts", "decisions")
        for page in (ROOT / "docs" / room).glob("*.md")
    ),
]
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = {name for line in re.findall(r"^([\w -]+):(?!=)", MAKEFILE, re.M) for name in line.split()}
_spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/generate.py")
assert _spec is not None
assert _spec.loader is not None
generate = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generate)


def blocks(language: str) -> list[Any]:
    """Each code block of a written page, named by its page."""
    return list(_blocks(language))


def _blocks(language: str) -> Iterator[Any]:
    for page in WRITTEN:
        text = page.read_text(encoding="utf-8")
        for number, found in enumerate(re.findall(rf"^ *```{language}\n(.*?)^ *```", text, re.M | re.S)):
            yield pytest.param(found, id=f"{page.relative_to(ROOT)}-{number}")


def test_pages_are_up_to_date() -> None:
    written = {name: (ROOT / "docs" / name).read_text(encoding="utf-8") for name in generate.PAGES}
    stale = [name for name, text in written.items() if text != generate.PAGES[name]()]
    assert stale == [], "out of date: run `make docs`"


@pytest.mark.parametrize("block", blocks("sh"))
def test_commands_exist(block: str) -> None:
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["trimtab"]:
            _check_command(words[1:])
        elif words[:1] == ["make"]:
            assert words[1] in TARGETS, line


def _check_command(words: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert not words or words[0].startswith("-") or not hasattr(command, "commands"), words
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if re.match(r"--?[a-z]", word)} <= known, words


@pytest.mark.parametrize("block", blocks("yaml"))
def test_yaml_parses(block: str) -> None:
    assert yaml.safe_load(block)


@pytest.mark.parametrize("block", blocks("python"))
def test_python_parses(block: str) -> None:
    compile(block, "page", "exec")


def test_links_lead_somewhere() -> None:
    links = [
        (page, link)
        for page in WRITTEN
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
        if "://" not in link
    ]
    assert len(links) > 100
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


def test_architecture_names_the_packages_that_there_are() -> None:
    """Each row of its table names a package and, in its last cell, the packages inside."""
    named: set[str] = set()
    for outer, rooms in re.findall(r"^\| `(\w+)` \|.*\|(.*)\|$", ARCHITECTURE.split("## Layers")[0], re.M):
        named |= {outer, *(f"{outer}/{inner}" for inner in re.findall(r"`(\w+)`(?=[:,])", rooms))}
    packages = (file.parent.relative_to(PACKAGE) for file in PACKAGE.rglob("__init__.py"))
    assert named == {str(package) for package in packages if 1 <= len(package.parts) <= 2}


def test_readme_quotes_no_page_that_was_measured_before_its_sources_changed() -> None:
    quoted = re.findall(
        r"docs/benchmarks/(?!index)[\w-]+\.md", (ROOT / "README.md").read_text(encoding="utf-8")
    )
    old = [page for page in quoted if "*Measured before" in (ROOT / page).read_text(encoding="utf-8")]
    assert old == []


def test_pages_of_measurements_tell_their_age() -> None:
    names = {page.stem for page in ages.PAGES.glob("*.md")} - {"index"}
    assert names | set(ages.ELSEWHERE) == set(ages.SOURCES)
    for name in ages.SOURCES:
        assert re.search(r"^\*Measured (before|at|now)", ages.page_of(name).read_text(), re.M), name
        assert ages.results_of(name).exists(), name
    rooms = {room for found in ages.SOURCES.values() for room in found}
    assert [room for room in rooms if not (PACKAGE / room).is_dir()] == []


def test_an_age_is_written_once() -> None:
    page = ages.PAGES / "policies.md"
    text = page.read_text(encoding="utf-8")
    assert ages.aged(page, ages.aged(page, text)).count("\n*Measured ") == 1


def test_readme_and_concepts_agree_on_what_works_where() -> None:
    """The same rows, and in each column the same degree of maturity; the concepts add how."""
    of_readme, of_concepts = (_maturity(ROOT / name) for name in ("README.md", "docs/concepts/index.md"))
    assert len(of_readme) > 10
    assert of_readme == of_concepts


def _maturity(page: Path) -> list[tuple[str, ...]]:
    """Rows of the table "What works where": the capability, then stable, alpha or neither in each column."""
    section = page.read_text(encoding="utf-8").split("## What works where")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    degrees = ("alpha", "stable", "not there yet", "records", "–")
    return [(row[0], *(next((d for d in degrees if d in cell), cell) for cell in row[1:])) for row in rows]


def test_architecture_is_short() -> None:
    assert len(ARCHITECTURE.splitlines()) <= 150


def test_architecture_names_files_that_there_are() -> None:
    files = re.findall(r"`((?:\w+/)+\w+\.py)`", ARCHITECTURE)
    assert [name for name in files if not (PACKAGE / name).exists() and not (ROOT / name).exists()] == []


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
