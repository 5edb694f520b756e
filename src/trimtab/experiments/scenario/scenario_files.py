"""Finds and reads scenario files of any kind of work: built-in ones, files, texts, values."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from trimtab.errors import ScenarioError, UsageError
from trimtab.experiments.provenance import PATH_KEYS
from trimtab.experiments.scenario.spec.scenario_file import ScenarioFile, kind_key
from trimtab.validation.names import nearest
from trimtab.validation.problems import checked
from trimtab.validation.yaml_text import parsed_yaml, read_yaml

GivenScenario: TypeAlias = ScenarioFile | str | os.PathLike[str] | Mapping[Any, Any]
F = TypeVar("F", bound=ScenarioFile)
_NAME = "scenario"  # of one that comes from no file


@dataclass(frozen=True, slots=True)
class ScenarioFiles(Generic[F]):
    """The scenario files of one kind of work."""

    model: type[F]
    package: str  # that has the folder of the built-in ones
    keys: str  # two of its keys, for the error about a file without any

    @property
    def key(self) -> str:
        """The value of `kind` in the files; "" = they have none."""
        return kind_key(self.model)

    def builtins(self) -> tuple[str, ...]:
        """Names of the built-in scenarios."""
        return tuple(
            sorted(f.name.removesuffix(".yaml") for f in self._folder().iterdir() if _is_yaml(f.name))
        )

    def text(self, name: str) -> str:
        """The text of a built-in scenario, with comments. Raises ScenarioError if none has this name."""
        return builtin_text(name, (self,))

    def parse(self, given: str | Mapping[Any, Any], file: str = _NAME, folder: Path | None = None) -> F:
        """A scenario from the text of a file, or its values; paths in it are relative to `folder`, if given.

        Raises ScenarioError that names all wrong fields.
        """
        data = _data(given, file, self.keys) if isinstance(given, str) else dict(given)
        data.setdefault("name", Path(file).stem)
        values = in_folder(data, folder)
        made = checked(lambda: self.model.model_validate(values), self.model, file, ScenarioError)
        return made.read_from(file)

    def load(self, given: GivenScenario) -> F:
        """A scenario by name, file, text or values. Raises ScenarioError, also for one of another kind."""
        if isinstance(given, self.model):
            return given
        made = read_scenario(given, (self,))
        if not isinstance(made, self.model):
            raise _of_another_kind((self,), value=made.name)
        return made

    def builtin(self, name: str) -> str:
        """The text of a built-in scenario that there is."""
        return (self._folder() / f"{name}.yaml").read_text(encoding="utf-8")

    def _folder(self) -> Traversable:
        return resources.files(self.package) / "builtin"


def read_scenario(
    given: GivenScenario, known: Sequence[ScenarioFiles[Any]], file: str = _NAME
) -> ScenarioFile:
    """A scenario of one of these kinds.

    Args:
        given: a scenario, a built-in's name, a file, its YAML text, or its values.
        known: the kinds.
        file: what errors call a text or values.

    Raises:
        ScenarioError: no such name or file, another kind, malformed YAML, or wrong fields (all are listed).
    """
    if isinstance(given, ScenarioFile):
        return given
    folder = None
    if isinstance(given, Mapping):
        data = dict(given)
    elif isinstance(given, str) and "\n" in given:
        data = _data(given, file, known[0].keys)
    else:
        path = as_path(given, _NAME)
        text, folder = _text(path, known)
        data, file = _data(text, str(path), known[0].keys), str(path)
    key = data.get("kind", "")
    kind = next((each for each in known if each.key == key), None)
    if kind is None:
        raise _of_another_kind(known, file=file, field="kind", value=key)
    made: ScenarioFile = kind.parse(data, file, folder)
    return made


def builtin_text(name: str, known: Sequence[ScenarioFiles[Any]]) -> str:
    """The text of a built-in scenario, with comments. Raises ScenarioError if none has this name."""
    for kind in known:
        if name in kind.builtins():
            return kind.builtin(name)
    if name in _all_builtins():
        raise _of_another_kind(known, value=name)
    names = [builtin for kind in known for builtin in kind.builtins()]
    expected = f"a built-in scenario or a YAML file: {nearest(name, names)}"
    raise ScenarioError("no such scenario", value=name, expected=expected)


def _all_builtins() -> set[str]:
    """Names of the built-in scenarios of all kinds, also of those that are not loaded."""
    rooms = (room / "builtin" for room in resources.files("trimtab.experiments").iterdir() if room.is_dir())
    files = (file.name for folder in rooms if folder.is_dir() for file in folder.iterdir())
    return {name.removesuffix(".yaml") for name in files if _is_yaml(name)}


def _of_another_kind(known: Sequence[ScenarioFiles[Any]], **told: Any) -> ScenarioError:
    takes = [f"a scenario with kind: {kind.key}" if kind.key else "a scenario of requests" for kind in known]
    expected = " or ".join(takes)
    if len(known) == 1:
        expected += "; `trimtab compare` takes all kinds, in Python trimtab.compare"
    return ScenarioError("is of another kind of work", expected=expected, **told)


def as_path(given: object, field: str) -> Path:
    """A name or path as a Path. Raises UsageError for anything else."""
    if not isinstance(given, str | os.PathLike):
        expected = "a name, a path or a Scenario" if field == _NAME else "a path"
        raise UsageError(f"is a {type(given).__name__}", field=field, value=given, expected=expected)
    return Path(given)


def _text(path: Path, known: Sequence[ScenarioFiles[Any]]) -> tuple[str, Path | None]:
    """The text of a file and its folder, or of a built-in scenario, which has none."""
    is_file = path.exists() or _is_yaml(path.name)
    if is_file and not any(str(path) in kind.builtins() for kind in known):
        return read_yaml(path, ScenarioError), path.parent
    return builtin_text(str(path), known), None


def _is_yaml(name: str) -> bool:
    return name.endswith((".yaml", ".yml"))


def _data(text: str, file: str, keys: str) -> dict[Any, Any]:
    return parsed_yaml(text, file, ScenarioError, "no scenario", f"keys such as {keys}")


def in_folder(value: Any, folder: Path | None) -> Any:
    """The data with every relative path resolved against the folder of their file."""
    if folder is None:
        return value
    if isinstance(value, dict):
        return {
            k: str(folder / v) if k in PATH_KEYS and isinstance(v, str) else in_folder(v, folder)
            for k, v in value.items()
        }
    return [in_folder(v, folder) for v in value] if isinstance(value, list) else value
