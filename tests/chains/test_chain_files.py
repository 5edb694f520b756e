"""Chains in YAML and Python files, and files of inputs: what they mean, and what is said of wrong ones."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trimtab.chains import run
from trimtab.chains.chain_files import load_chain
from trimtab.chains.input_files import read_inputs
from trimtab.clusters.in_process import InProcess
from trimtab.errors import ChainError, UsageError

STAGES = """
from trimtab.chains import chain, stage

@stage
def words(text: str) -> list[str]:
    return text.split()

def upper(word: str, mark: str = "") -> str:
    return word.upper() + mark

@stage
def joined(parts: list[str]) -> str:
    return " ".join(parts)

@chain
def shout(text: str):
    return joined(words(text))
"""
SHOUT = """
name: shout
inputs: {text: str, mark: {type: str, default: "!"}}
stages:
  words: {run: STAGES.words, args: {text: input.text}}
  big: {run: STAGES.upper, map: {word: words}, args: {mark: input.mark}}
  first: {run: STAGES.upper, args: {word: words.0, mark: {value: "."}}}
  joined: {run: STAGES.joined, args: {parts: big}, options: {retries: 5}}
output: {all: joined, first: first}
"""


@pytest.fixture
def module(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """A module of stages in a folder, under a name of its own."""
    name = f"stages_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(STAGES)
    path = list(sys.path)
    yield name
    sys.path[:] = path
    sys.modules.pop(name, None)


def written(folder: Path, text: str) -> str:
    path = folder / "shout.yaml"
    path.write_text(text)
    return str(path)


def test_a_chain_of_a_file_runs(tmp_path: Path, module: str) -> None:
    made = load_chain(written(tmp_path, SHOUT.replace("STAGES", module)))
    inputs = ["a bc", {"text": "d", "mark": "?"}]
    assert run(made, inputs, on=InProcess()).values() == [
        {"all": "A! BC!", "first": "A."},
        {"all": "D?", "first": "D."},
    ]
    assert made.step("joined").stage.stage_options.retries == 5
    assert load_chain(f"{tmp_path / module}.py").name == "shout"
    assert load_chain(f"{tmp_path / module}.py:shout").name == "shout"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (("parts: big", "parts: bog"), r"stages.joined.args.parts: no such value \(got 'bog'\)"),
        (("options:", "optons:"), r"stages.joined.optons: unknown key"),
        (("retries", "retrys"), r"stages.joined.options: no such option \(got 'retrys'\)"),
        (("retries: 5", "retries: -1"), r"stages.joined.options.retries: out of range"),
        (("STAGES.joined", "STAGES.joint"), r"stages.joined.run: no such stage"),
        (("STAGES.words,", "no_such_module.words,"), r"stages.words.run: cannot be imported"),
        (("input.text", "input.txt"), r"stages.words.args.text: no such input"),
        (("text: str,", "text: strange,"), r"inputs.text: no such type"),
        (("word: words}", "word: words, mark: words}"), r"is given under `map` and `args`"),
        (("map: {word: words}", "args2: {word: words}"), r"stages.big.args2: unknown key"),
        (("run: STAGES.words, ", ""), r"stages.words: runs nothing, or two things"),
        (("parts: big", "parts: first"), r"shout.joined.parts: a value of another type"),
        (("output: {all: joined, first: first}", "output: [1"), r"malformed YAML"),
    ],
)
def test_wrong_files_are_refused_with_file_and_field(
    tmp_path: Path, module: str, wrong: tuple[str, str], message: str
) -> None:
    before, after = wrong
    assert before in SHOUT
    text = SHOUT.replace(before, after, 1).replace("STAGES", module)
    with pytest.raises(ChainError, match=message):
        load_chain(written(tmp_path, text))


def test_python_sources_that_name_no_one_chain_are_refused(tmp_path: Path, module: str) -> None:
    with pytest.raises(ChainError, match=r"has no chain of this name \(got 'cry'\); expected .*shout"):
        load_chain(f"{tmp_path / module}.py:cry")
    with pytest.raises(ChainError, match="no such file"):
        load_chain(str(tmp_path / "none.py"))


def test_broken_lines_are_told_by_number_and_the_others_are_read(tmp_path: Path, module: str) -> None:
    made = load_chain(written(tmp_path, SHOUT.replace("STAGES", module)))
    path = tmp_path / "in.jsonl"
    path.write_text('"a"\n\n{"text": \n{"txt": 1}\n{"text": "b", "mark": "?"}\n')
    found = read_inputs(path, made)
    assert found.values == ["a", {"text": "b", "mark": "?"}]
    assert found.lines == [1, 5]
    first, second = map(str, found.problems)
    assert first.startswith(f"{path}: line 3, column 10: not JSON")
    assert second == f"{path}: line 4: not the chain's inputs (got {{'txt': 1}}); expected text, mark"
    path.write_text('{"text": ["a"]}\n{"text": "a", "mark": 5}\n{"text": "a", "mark": "!"}\n')
    first, second = map(str, read_inputs(path, made).problems)
    assert first == f"{path}: line 1, text: a value of another type (got ['a']); expected str"
    assert second == f"{path}: line 2, mark: a value of another type (got 5); expected str"
    text = tmp_path / "in.txt"
    text.write_text("one\ntwo words\n")
    assert read_inputs(text, made).values == ["one", "two words"]
    with pytest.raises(UsageError, match="cannot be read"):
        read_inputs(tmp_path / "none.jsonl", made)


def test_a_module_of_stages_loads_no_host() -> None:
    """Every worker imports it."""
    module = "from trimtab.chains import StageContext, chain, run, stage"
    heavy = "{'numba', 'numpy', 'pydantic', 'sqlalchemy', 'asyncio'}"
    program = f"import sys\n{module}\nprint(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
