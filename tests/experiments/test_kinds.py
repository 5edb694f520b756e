"""Every kind of work is found in one place, by the file's `kind` or by the trace."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from trimtab.errors import ScenarioError, UsageError
from trimtab.experiments.compare.comparison import Comparison
from trimtab.experiments.kinds import SCENARIO_FILES, all_builtins, kind_of, load_any, resolve
from trimtab.experiments.scenario.scenario_parts import Parts
from trimtab.validation.yaml_text import parsed_yaml

TITLES = {
    "tiny": "requests",
    "elastic-training": "training jobs",
    "shared-cluster": "a shared cluster",
    "autoscaling": "autoscaled pools",
}
CLUSTER = "types: {node: {accelerators: 4, memory_gib: 64}}\nnodes: [{type: node, count: 2}]\n"


def test_each_scenario_is_of_its_kind_as_name_file_text_and_values(tmp_path: Path) -> None:
    for name, title in TITLES.items():
        scenario = load_any(name)
        text = next(files.text(name) for files in SCENARIO_FILES if name in files.builtins())
        (tmp_path / f"{name}.yaml").write_text(text)
        for given in (scenario, text, tmp_path / f"{name}.yaml", scenario.content()):
            assert load_any(given).hash() == scenario.hash()
        assert kind_of(scenario).title == title


def test_content_gives_every_builtin_again() -> None:
    found = all_builtins()
    assert found.keys() > TITLES.keys()
    for name, scenario in found.items():
        again = load_any(scenario.content())
        assert (type(again), again.name, again.hash()) == (type(scenario), name, scenario.hash())


@pytest.mark.parametrize(
    ("trace", "title"),
    [
        ("job_id,submission_time,num_gpu,duration\na,0,4,100\n", "training jobs"),
        ("arrival_s,size\n0,1\n1,2\n", "requests"),
    ],
)
def test_a_trace_alone_says_its_kind(tmp_path: Path, trace: str, title: str) -> None:
    rows, cluster = tmp_path / "trace.csv", tmp_path / "cluster.yaml"
    rows.write_text(trace)
    cluster.write_text(CLUSTER)
    kind, scenario = resolve(None, Parts(trace=rows, cluster=cluster))
    assert kind.title == title
    assert kind.amounts(kind.build(scenario, 0, None))["nodes"] == 2


def test_a_part_that_a_kind_does_not_take_is_refused() -> None:
    for name in TITLES:
        kind = kind_of(load_any(name))
        for part, instead in kind.untaken.items():
            with pytest.raises(UsageError, match=f"does not apply to {kind.title}; expected {instead}"):
                resolve(name, Parts(given={part: f"--{part}"}))


def test_a_scenario_of_another_kind_is_refused_by_name() -> None:
    for files in SCENARIO_FILES:
        for name in set(TITLES) - set(files.builtins()):
            with pytest.raises(ScenarioError, match=r"no such scenario|another kind"):
                files.load(name)
            with pytest.raises(ScenarioError, match="another kind"):
                files.load(load_any(name))


def test_paths_in_a_file_are_relative_to_it_for_jobs_too(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("job_id,submission_time,num_gpu,duration\na,0,4,100\nb,1,2,50\n")
    path = tmp_path / "mine.yaml"
    cluster = "".join(f"  {line}\n" for line in CLUSTER.splitlines())
    path.write_text(f"kind: training\ncluster:\n{cluster}jobs: {{trace: {{file: jobs.csv}}}}\n")
    scenario = load_any(path)
    assert kind_of(scenario).size(scenario) == 2


def test_the_hash_of_training_jobs_leaves_out_the_folders_of_trace_and_profiles() -> None:
    def hash_in(folder: str, profiles: str) -> str:
        trace = {"file": f"{folder}/jobs.csv", "profiles": f"{folder}/{profiles}"}
        values = {"kind": "training", "cluster": parsed_yaml(CLUSTER, "", ScenarioError, "", "")}
        return load_any({**values, "jobs": {"trace": trace}}).hash()

    assert hash_in("/a", "speeds") == hash_in("/b/c", "speeds")
    assert hash_in("/a", "speeds") != hash_in("/a", "others")


def test_the_folder_of_records_and_the_key_of_results_have_no_blanks() -> None:
    for name in TITLES:
        comparison = SimpleNamespace(kind=kind_of(load_any(name)))
        assert Comparison.items_key.__get__(comparison).isidentifier()
