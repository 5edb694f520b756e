"""What the code of Kubeflow components names: its artifacts and annotations, without the package kfp.

It stands for `kfp.dsl` where a component runs, as Kubeflow Pipelines documents it (SDK 2, "Data types").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final, TypeVar

T = TypeVar("T")


class Artifact:
    """A file or folder that a component reads or writes, with metadata."""

    schema_title: ClassVar[str] = "system.Artifact"
    schema_version: ClassVar[str] = "0.0.1"

    def __init__(self, name: str = "", uri: str = "", metadata: dict[str, Any] | None = None) -> None:
        self.name, self.uri, self.metadata = name, uri, metadata or {}

    @property
    def path(self) -> str:
        """Where it lies on the machine that runs the component."""
        return self.uri

    @path.setter
    def path(self, path: str) -> None:
        self.uri = path


class Dataset(Artifact):
    """Data."""

    schema_title = "system.Dataset"


class Model(Artifact):
    """A machine-learning model."""

    schema_title = "system.Model"

    @property
    def framework(self) -> str:
        """What made it."""
        return str(self.metadata.get("framework", ""))

    @framework.setter
    def framework(self, framework: str) -> None:
        self.metadata["framework"] = framework


class HTML(Artifact):
    """A page."""

    schema_title = "system.HTML"


class Markdown(Artifact):
    """A text in Markdown."""

    schema_title = "system.Markdown"


class Metrics(Artifact):
    """Numbers by name."""

    schema_title = "system.Metrics"

    def log_metric(self, metric: str, value: float) -> None:
        """Note a number."""
        self.metadata[metric] = value


class ClassificationMetrics(Artifact):
    """Curves and confusion matrices of classifiers."""

    schema_title = "system.ClassificationMetrics"

    def log_roc_data_point(self, fpr: float, tpr: float, threshold: float) -> None:
        """Add a point of the ROC curve."""
        point = {"confidenceThreshold": threshold, "recall": tpr, "falsePositiveRate": fpr}
        self.metadata.setdefault("confidenceMetrics", []).append(point)

    def log_roc_curve(self, fpr: Sequence[float], tpr: Sequence[float], threshold: Sequence[float]) -> None:
        """Add points of the ROC curve. Raises ValueError for lists of unequal length."""
        for point in zip(fpr, tpr, threshold, strict=True):
            self.log_roc_data_point(*point)

    def set_confusion_matrix_categories(self, categories: Sequence[str]) -> None:
        """Begin a matrix of zeros."""
        self.metadata["confusionMatrix"] = {
            "annotationSpecs": [{"displayName": category} for category in categories],
            "rows": [{"row": [0] * len(categories)} for _ in categories],
        }

    def log_confusion_matrix_row(self, row_category: str, row: Sequence[float]) -> None:
        """Set a row. Raises ValueError for another category or length."""
        categories = self._categories()
        if len(row) != len(categories):
            raise ValueError(f"a row of {len(row)} numbers; expected {len(categories)}")
        self._rows()[categories.index(row_category)] = {"row": list(row)}

    def log_confusion_matrix_cell(self, row_category: str, col_category: str, value: float) -> None:
        """Set a number. Raises ValueError for another category."""
        categories = self._categories()
        self._rows()[categories.index(row_category)]["row"][categories.index(col_category)] = value

    def log_confusion_matrix(self, categories: Sequence[str], matrix: Sequence[Sequence[float]]) -> None:
        """Set the whole matrix. Raises ValueError for one of another size."""
        self.set_confusion_matrix_categories(categories)
        for category, row in zip(categories, matrix, strict=True):
            self.log_confusion_matrix_row(category, row)

    def _categories(self) -> list[str]:
        return [spec["displayName"] for spec in self.metadata["confusionMatrix"]["annotationSpecs"]]

    def _rows(self) -> list[dict[str, list[float]]]:
        rows: list[dict[str, list[float]]] = self.metadata["confusionMatrix"]["rows"]
        return rows


ARTIFACTS: Final = {
    kind.schema_title: kind
    for kind in (Artifact, Dataset, Model, HTML, Markdown, Metrics, ClassificationMetrics)
}

INPUT, OUTPUT = "input", "output"
Input = Annotated[T, INPUT]
Output = Annotated[T, OUTPUT]


class InputPath:
    """Annotates a parameter that gets the path of an input artifact."""

    def __init__(self, type: Any = None) -> None:
        self.type = type


class OutputPath:
    """Annotates a parameter that gets the path at which the component writes an output."""

    def __init__(self, type: Any = None) -> None:
        self.type = type

    @property
    def artifact(self) -> type[Artifact] | None:
        """The kind of artifact that is written; None = the value of a parameter."""
        if self.type in PARAMETERS or getattr(self.type, "__origin__", None) in PARAMETERS:
            return None
        if isinstance(self.type, type) and issubclass(self.type, Artifact):
            return self.type
        return ARTIFACTS.get(f"system.{self.type}", Artifact)


PARAMETERS: Final = (str, int, float, bool, list, dict)
NAMES: Final = (
    "Artifact", "ClassificationMetrics", "Dataset", "HTML", "Input", "InputPath", "Markdown", "Metrics",
    "Model", "Output", "OutputPath",
)  # fmt: skip
