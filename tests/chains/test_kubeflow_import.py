"""Compiled Kubeflow pipelines as chains: what they mean, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from support.kubeflow.documents import READ, constant, outer, output, parameters, pipeline, python, task
from trimtab.chains import Chain, run
from trimtab.chains.chain_files import load_chain
from trimtab.chains.kubeflow.artifact_values import ArtifactValue
from trimtab.chains.kubeflow.chain_source import Imported, chain_source
from trimtab.chains.kubeflow.pipeline_spec import read_pipeline
from trimtab.clusters.in_process import InProcess
from trimtab.errors import ChainError
from trimtab.live.stage_backend import StageNode


def imported(data: dict[str, Any] | str, folder: Path) -> Imported:
    file = folder / "pipeline.yaml"
    file.write_text(data if isinstance(data, str) else yaml.safe_dump(data))
    return chain_source(read_pipeline(file), str(file))


def chain_of(data: dict[str, Any], folder: Path) -> Chain:
    folder.mkdir(exist_ok=True)
    source = folder / f"imported_{abs(hash(folder))}.py"
    source.write_text(imported(data, folder).text)
    return load_chain(str(source))


def outputs(chain: Chain, **given: Any) -> Any:
    node = StageNode("here", 2, {"cpu": 4.0, "gpu": 1.0, "memory_gib": 4.0}, {"accelerator": "NVIDIA_A100"})
    (result,) = run(chain, [given], on=InProcess([node])).wait()
    return result.value


def test_functions_and_artifacts_of_a_pipeline_run_as_a_chain(folder: Path) -> None:
    chain = chain_of(pipeline(), folder)
    assert (chain.name, chain.defaults) == ("notes-of-2", {"times": 3})
    # 6 and 3.0 in a text, as the launcher writes them: without a fraction that is 0
    assert outputs(chain, text="ab") == {"told": "6 of 3 ababab m", "half": 3.0}
    assert outputs(chain, text="x", times=1) == {"told": "1 of 0.5 x m", "half": 0.5}


def test_resources_retries_and_caching_become_options(folder: Path) -> None:
    made = imported(pipeline(), folder)
    chain = chain_of(pipeline(), folder)
    write, read = (chain.step(name).stage.stage_options for name in ("write", "read"))
    assert write.demand() == {"cpu": 1.5, "gpu": 1.0, "memory_gib": 2.0}
    assert write.needed_labels() == {"accelerator": "NVIDIA_A100"}
    assert (write.retries, write.backoff_s, write.backoff_max_s, write.deterministic) == (4, 2.0, 60.0, False)
    assert (read.retries, read.deterministic) == (0, True)
    assert made.stages == ("write", "read")
    assert made.notes == (
        "write: waits between attempts double, they grow 3-fold there",
        "write: workers need numpy>=2",
        "read: workers need numpy>=2",
    )


def test_a_command_runs_with_its_placeholders_resolved(folder: Path) -> None:
    data = pipeline()
    told = {"producerSubtask": "count", "outputParameterKey": "lines"}
    copied = {"producerSubtask": "count", "outputArtifactKey": "copy"}
    data["root"]["dag"]["tasks"]["count"] = task(
        "count", "write", artifacts={"data": ("write", "data")}, word=outer("text")
    )
    data["root"]["dag"]["outputs"] = {
        "parameters": {"lines": {"valueFromParameter": told}},
        "artifacts": {"copy": {"artifactSelectors": [copied]}},
    }
    found = outputs(chain_of(data, folder), text="ab", times=1)
    assert found == {"lines": 3, "copy": ArtifactValue("system.Dataset", "copy", {}, b"ab<ab>\n")}
    container = data["deploymentSpec"]["executors"]["exec-count"]["container"]
    container["command"][2] = 'echo "$4 $5" > "$1"; echo 4 > "$3"'
    assert outputs(chain_of(data, folder / "else"), text="ab")["copy"].content == b"--none \n"
    data["root"]["dag"]["tasks"]["count"]["inputs"]["parameters"]["end"] = constant("e")
    assert outputs(chain_of(data, folder / "then"), text="ab")["copy"].content == b"--end e\n"


def test_a_command_that_fails_says_what_it_printed(folder: Path) -> None:
    data = pipeline()
    data["root"]["dag"]["tasks"]["count"] = task(
        "count", artifacts={"data": ("write", "data")}, word=constant("w")
    )
    container = data["deploymentSpec"]["executors"]["exec-count"]["container"]
    container["command"], container["args"] = ["sh", "-c", "echo broken >&2; exit 3"], []
    node = StageNode("here", 2, {"cpu": 4.0, "gpu": 1.0, "memory_gib": 4.0}, {"accelerator": "NVIDIA_A100"})
    del data["root"]["dag"]["outputs"]
    (result,) = run(chain_of(data, folder), [{"text": "x"}], on=InProcess([node])).wait()
    assert "sh ended with code 3: broken" in str(result.failure)


def test_a_pipeline_in_a_pipeline_and_an_order_without_data(folder: Path) -> None:
    data = pipeline()
    inner = {
        "inputDefinitions": {
            "parameters": {
                "word": {"parameterType": "STRING"},
                "end": {"parameterType": "STRING", "defaultValue": "!"},
            }
        },
        "outputDefinitions": parameters(size="NUMBER_INTEGER"),
        "dag": {
            "tasks": {"write": task("write", text=constant("{{$.inputs.parameters['e']}}"), e=outer("end"))},
            "outputs": {
                "parameters": {
                    "size": {"valueFromParameter": {"producerSubtask": "write", "outputParameterKey": "size"}}
                }
            },
        },
    }
    data["components"]["comp-inner"] = inner
    tasks = data["root"]["dag"]["tasks"]
    tasks["inner"] = task("inner", word=outer("text"))
    tasks["write"]["dependentTasks"] = ["inner"]
    tasks["read"]["inputs"]["parameters"]["pipelinechannel--size"] = output("inner", "size")
    tasks["read"]["dependentTasks"] = ["write", "inner"]
    chain = chain_of(data, folder)
    first, second = (chain.step(name) for name in ("inner_write", "write"))
    assert [chain.steps[k] for k in second.after] == [first]
    assert outputs(chain, text="ab", times=1) == {"told": "2 of 1 ab m", "half": 1.0}


def test_functions_of_one_name_and_names_that_python_has_stay_apart(folder: Path) -> None:
    data = pipeline()
    executors, tasks = data["deploymentSpec"]["executors"], data["root"]["dag"]["tasks"]
    helper = "def sorted(text):\n    return text[:1]\n\n"
    other = (
        helper
        + "def write(text: str) -> NamedTuple('W', [('size', int)]):\n    return (len(sorted(text)),)\n"
    )
    executors["exec-other"] = python(other, "write")
    data["components"]["comp-other"] = {
        "executorLabel": "exec-other",
        "inputDefinitions": parameters(text="STRING"),
        "outputDefinitions": parameters(size="NUMBER_INTEGER"),
    }
    tasks["other"] = task("other", text=outer("text"))
    tasks["read"]["inputs"]["parameters"]["pipelinechannel--size"] = output("other", "size")
    text = imported(data, folder).text
    assert "def sorted_2(text)" in text
    assert "len(sorted_2(text))" in text
    assert outputs(chain_of(data, folder), text="ab", times=2)["told"] == "1 of 2 abab m"


def test_a_pipeline_without_outputs_returns_those_of_its_last_tasks(folder: Path) -> None:
    data = pipeline()
    del data["root"]["dag"]["outputs"], data["root"]["outputDefinitions"]
    made = imported(data, folder)
    assert made.notes[-1] == "the pipeline has no outputs: the chain has those of its last tasks"
    assert outputs(chain_of(data, folder), text="a", times=1) == {"read": {"Output": "1 of 0.5 a m"}}


def test_results_are_used_again_for_the_same_command_only(folder: Path) -> None:
    calls = folder / "calls"
    found = []
    for number, mark in enumerate(("one", "two", "one")):
        data = pipeline()
        container = data["deploymentSpec"]["executors"]["exec-count"]["container"]
        container["command"], container["args"] = ["sh", "-c", f'echo {mark} | tee -a {calls} > "$0"'], []
        container["args"] = ["{{$.outputs.artifacts['copy'].path}}"]
        count = task("count", word=outer("text"))
        data["root"]["dag"]["tasks"] = {"count": {**count, "cachingOptions": {"enableCache": True}}}
        del data["root"]["dag"]["outputs"]
        chain = chain_of(data, folder / str(number))
        (result,) = run(chain, [{"text": "x"}], on=InProcess(), journal=folder / "journal").wait()
        found.append(result.value["count"]["copy"].content)
    assert found == [b"one\n", b"two\n", b"one\n"]
    assert calls.read_text() == "one\ntwo\n"


REFUSED = [
    ({"schemaVersion": "2.0.0"}, r"schemaVersion: another version .*'2.0.0'\); expected 2.1.0"),
    ({"schemaVersion": None}, "schemaVersion: no version"),
    ({"apiVersion": "argoproj.io/v1alpha1"}, "apiVersion: is an Argo workflow, as kfp 1 compiles"),
    ({"pipelineSpec": {}}, "pipelineSpec: is a job"),
    ({"root": {"dag": None}}, "root.dag: has no graph of tasks"),
    ({"root.dag.tasks.read.parameterIterator": {"itemInput": "x"}},
     r"root.dag.tasks.read.parameterIterator: a loop is not supported; expected .*stage.map"),
    ({"root.dag.tasks.read.artifactIterator": {"itemInput": "x"}}, "tasks.read.artifactIterator: a loop"),
    ({"root.dag.tasks.read.triggerPolicy": {"condition": "a == 1"}},
     r"tasks.read.triggerPolicy: a condition is not supported; expected .*stage.when"),
    ({"root.dag.tasks.read.triggerPolicy": {"strategy": "ALL_UPSTREAM_TASKS_COMPLETED"}},
     "an exit handler, or a task that ignores failures"),
    ({"root.dag.tasks.read.inputs.parameters.message": {"taskFinalStatus": {"producerTask": "write"}}},
     r"parameters.message.taskFinalStatus: the status of another task is not supported"),
    ({"root.dag.tasks.read.inputs.parameters.message": {**outer("text"), "parameterExpressionSelector": "x"}},
     "a part of a value is not supported"),
    ({"root.dag.tasks.read.inputs.parameters.message": constant("{{$.pipeline_job_name}}")},
     r"message: a placeholder that is not supported \(got '{{\$.pipeline_job_name}}'\)"),
    ({"root.dag.tasks.read.inputs.parameters.message": {}}, "message: has no value"),
    ({"root.dag.tasks.read.inputs.parameters.message": outer("txt")},
     r"message: no such input \(got 'txt'\); expected one of text, times"),
    ({"root.dag.tasks.read.inputs.parameters.message": output("write", "sise")},
     r"no such output \(got 'write.sise'\); expected one of write.half, write.size"),
    ({"root.dag.tasks.read.dependentTasks": ["wrote"]}, r"dependentTasks: no such name \(got 'wrote'\)"),
    ({"root.dag.tasks.write.dependentTasks": ["read"]}, "tasks: tasks wait for each other"),
    ({"root.dag.tasks.read.componentRef.name": "comp-rad"}, "componentRef.name: no such name"),
    ({"root.dag.tasks.read.colour": 1}, "root.dag.tasks.read.colour: unknown key"),
    ({"root.dag.tasks.write.retryPolicy.backoffDuration": "2m"}, r"retryPolicy: no duration \(got '2m'\)"),
    ({"root.inputDefinitions.artifacts": {"data": {"artifactType": {"schemaTitle": "system.Dataset"}}}},
     "an artifact as an input of the pipeline is not supported"),
    ({"root.inputDefinitions.parameters.text.parameterType": "TEXT"}, r"no such type \(got 'TEXT'\)"),
    ({"deploymentSpec.executors.exec-read": {"importer": {"artifactUri": {"constant": "s3://b"}}}},
     "exec-read.importer: an importer is not supported"),
    ({"deploymentSpec.executors.exec-read.container.command": ["python3", "-m", "kfp.dsl.executor_main"]},
     "is a function that only the image has"),
    ({"deploymentSpec.executors.exec-read": {"container": {"image": "tool:1"}}},
     "what runs is known to the image alone"),
    ({"deploymentSpec.executors.exec-read": python(READ.replace("Input", "dsl.TaskConfig"), "read")},
     "uses TaskConfig of kfp, which is not supported"),
    ({"deploymentSpec.executors.exec-read": python(READ, "reed")}, r"no such function \(got 'reed'\)"),
    ({"deploymentSpec.executors.exec-read": python("def read(:\n", "read")}, "is no Python: "),
    ({"deploymentSpec.executors.exec-write.container.resources.resourceCpuRequest": "two"},
     r"cpuRequest: is no quantity \(got 'two'\)"),
    ({"deploymentSpec.executors.exec-write.container.resources.resourceCpuRequest": "{{$.inputs}}"},
     "depends on an input, which is not supported"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "message"), REFUSED)
def test_what_a_chain_cannot_do_is_refused_by_name(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    data = pipeline()
    for path, value in changed.items():
        *parents, last = path.split(".")
        part = data
        for key in parents:
            part = part[key]
        part[last] = value
    with pytest.raises(ChainError, match=message) as error:
        imported(data, tmp_path)
    assert str(error.value).startswith(str(tmp_path / "pipeline.yaml"))


def test_documents_of_a_platform_and_files_that_are_no_pipeline_are_refused(tmp_path: Path) -> None:
    text = yaml.safe_dump(pipeline())
    assert imported(f"---\n{text}", tmp_path).stages == ("write", "read")
    platform = "---\nplatforms:\n  kubernetes:\n    deploymentSpec: {}\n"
    with pytest.raises(ChainError, match="platforms: has settings of a platform"):
        imported(text + platform, tmp_path)
    with pytest.raises(ChainError, match="no pipeline but list"):
        imported("[1]", tmp_path)
    with pytest.raises(ChainError, match="malformed YAML"):
        imported("a: [", tmp_path)
