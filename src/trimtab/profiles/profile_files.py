"""Files of latency profiles: built-in ones, and those that users have fitted."""

from __future__ import annotations

import os
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import yaml

from trimtab.errors import UsageError
from trimtab.profiles.latency_profile import LatencyProfile
from trimtab.validation.names import nearest
from trimtab.validation.problems import checked
from trimtab.validation.yaml_text import parsed_yaml, read_yaml

_SUFFIXES = (".yaml", ".yml")


def names() -> tuple[str, ...]:
    """Names of the built-in profiles."""
    files = (file.name for file in _folder().iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in files if name.endswith(".yaml")))


def load_profile(name: str | os.PathLike[str]) -> LatencyProfile:
    """A built-in profile by its name, or one from a file.

    Raises UsageError: no such name or file, malformed YAML, or wrong fields (all are listed).
    """
    path = Path(name)
    if str(name) in names():
        return parsed_profile((_folder() / f"{name}.yaml").read_text(encoding="utf-8"), str(name))
    if path.suffix not in _SUFFIXES and not path.exists():
        expected = f"a built-in profile or a YAML file: {nearest(str(name), names())}"
        raise UsageError("no such profile", field="profile", value=str(name), expected=expected)
    return parsed_profile(read_yaml(path, UsageError), str(path))


def parsed_profile(text: str, file: str) -> LatencyProfile:
    """A profile from the text of a file. Raises UsageError that names all wrong fields."""
    data = parsed_yaml(text, file, UsageError, "no profile", "keys such as gpu and dense_s")
    return checked(lambda: LatencyProfile.model_validate(data), LatencyProfile, file, UsageError)


def profile_text(profile: LatencyProfile) -> str:
    """The text of a file: fields that are set, points in one line each."""
    values = profile.model_dump(exclude_defaults=True)
    lines = [_line(key, value) for key, value in values.items()]
    return "".join(lines)


def _line(key: str, value: object) -> str:
    """`key: value` on one line; numbers with four digits, but for whole ones."""
    if isinstance(value, dict):
        shown = "{" + ", ".join(f"{x}: {_number(y)}" for x, y in value.items()) + "}"
    elif isinstance(value, float):
        shown = _number(value)
    else:
        shown = yaml.safe_dump(value, allow_unicode=True, width=1_000_000).removesuffix("...\n").strip()
    return f"{key}: {shown}\n"


def _number(value: float) -> str:
    """A number that YAML reads as one: 1.234e-05, 0.01234, 131072."""
    if value == int(value):
        return str(int(value))
    text = f"{value:.4g}"
    return text if "e" not in text or "." in text else text.replace("e", ".0e")


def _folder() -> Traversable:
    return resources.files("trimtab.profiles") / "builtin"
