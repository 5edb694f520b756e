"""Kubeflow pipelines and chains: what the files that `trimtab chain import kfp` writes are made of."""

from trimtab.chains.kubeflow import dsl
from trimtab.chains.kubeflow.components import after, component, task
from trimtab.chains.kubeflow.dsl import (
    HTML,
    Artifact,
    ClassificationMetrics,
    Dataset,
    Input,
    InputPath,
    Markdown,
    Metrics,
    Model,
    Output,
    OutputPath,
)
from trimtab.chains.kubeflow.programs import program

__all__ = [
    "HTML",
    "Artifact",
    "ClassificationMetrics",
    "Dataset",
    "Input",
    "InputPath",
    "Markdown",
    "Metrics",
    "Model",
    "Output",
    "OutputPath",
    "after",
    "component",
    "dsl",
    "program",
    "task",
]
