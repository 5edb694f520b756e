"""Policies in files that `trimtab tune` wrote: the file stands for the policy that it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from trimtab.domain.artifact import SUFFIX
from trimtab.errors import UsageError
from trimtab.validation.yaml_text import parsed_yaml, read_yaml

POLICY: Final = "policy"  # the key of the file
_FILE: Final = re.compile(rf"(?<![\w.])([^+(),]+\.py)(?=:)|(?<==)([^+(),=]+{re.escape(SUFFIX)})")


def is_tuned_file(spec: str) -> bool:
    """Whether the text of a policy is the path of a YAML file."""
    return spec.strip().endswith((".yaml", ".yml"))


def spelled(spec: str) -> str:
    """The text of a policy; for the path of a file of `trimtab tune`, the policy in it. Raises UsageError.

    The path of a policy's own file is relative to the folder of the YAML file.
    """
    if not is_tuned_file(spec):
        return spec
    path = Path(spec.strip())
    expected = f"a file of `trimtab tune`, with the key {POLICY}: NAME(parameter=value, …)"
    data = parsed_yaml(read_yaml(path, UsageError), str(path), UsageError, "no tuned policy", expected)
    found = data.get(POLICY)
    if not isinstance(found, str) or is_tuned_file(found):
        raise UsageError("names no policy", file=str(path), field=POLICY, value=found, expected=expected)
    return placed(found, path.parent)


def placed(spec: str, folder: Path) -> str:
    """The text of a policy with the paths in it, of its class and of learned weights, from this folder."""
    return _FILE.sub(lambda match: str(folder / (match[1] or match[2]).strip()), spec)
