"""Messages about wrong settings: whose kind they are, and what they keep to themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ConfigDict, Field

from trimtab.errors import ConfigError, ScenarioError, UsageError
from trimtab.validation.base import Spec
from trimtab.validation.problems import checked
from trimtab.validation.yaml_text import document, parsed_yaml, read_yaml


class Secret(Spec):
    model_config = ConfigDict(json_schema_extra={"writeOnly": True})
    digest: str = Field(pattern="^[0-9]+$", json_schema_extra={"writeOnly": True})
    weight: int = 1


class Settings(Spec):
    url: int = 0
    secret: Secret | None = None
    secrets: tuple[Secret, ...] = Field((), json_schema_extra={"writeOnly": True})


def error_of(data: object, kind: type[UsageError] = ConfigError) -> UsageError:
    with pytest.raises(kind) as caught:
        checked(lambda: Settings.model_validate(data), Settings, "f.yaml", kind)
    return caught.value


@pytest.mark.parametrize("kind", [ConfigError, ScenarioError])
def test_the_error_is_of_the_kind_that_was_asked_for(kind: type[UsageError]) -> None:
    assert type(error_of({"url": "x"}, kind)) is kind


@pytest.mark.parametrize(
    "data",
    [
        {"secret": {"digest": "hush"}},
        {"secret": "hush"},
        {"secret": ["hush"]},
        {"secret": {"digest": "1", "hush-key": "hush"}},
        {"secret": {"weight": 1, "key": "hush"}},
        {"secrets": [{"digest": "hush"}]},
        {"secrets": ["hush"]},
        {"secrets": {"name": "hush"}},
        {"secrets": "hush"},
        {"url": "postgresql://user:hush@host/db"},
    ],
)
def test_secrets_are_never_repeated(data: object) -> None:
    message = str(error_of(data))
    assert "hush" not in message.replace("hush-key", "")
    assert "f.yaml" in message


def test_what_is_beside_a_secret_is_shown() -> None:
    error = error_of({"secrets": [{"digest": "1", "weight": "much"}]})
    assert (error.field, error.value) == ("secrets[0].weight", "much")


def test_lists_and_tables_are_called_so() -> None:
    assert error_of({"secrets": 3}).expected == "a list"
    assert error_of({"secret": 3}).expected == "a table: key: value"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: 1\na: 2", "given twice"),
        ("a: [", "malformed YAML"),
        ("a: &x [*x]", "malformed YAML|alias"),
        ("- 1", "no settings but list"),
        ("", "no settings but empty"),
        ("[" * 5000, "nested too deeply"),
    ],
)
def test_yaml_that_is_no_table(text: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        parsed_yaml(text, "f.yaml", ConfigError, "no settings", "keys")


def test_an_empty_document_is_nothing() -> None:
    assert document("# nothing", "f.yaml", ConfigError) is None


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_yaml(tmp_path / "none.yaml", ConfigError)
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe4")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_yaml(tmp_path / "latin.yaml", ConfigError)
