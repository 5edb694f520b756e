"""Commands to a run from other processes: files in a folder of the run, each answered by a file.

They wait in the folder while no process works on the run, and are obeyed in their order when it goes on. What
they change is kept in the journal.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, ValidationError

from trimtab.errors import UsageError
from trimtab.training.runner.job_list import JobSpec
from trimtab.training.runner.run_ledger import DONE, FAILED, STOPPED, default_runs
from trimtab.training.runner.train_reports import run_state
from trimtab.validation.base import Spec

FOLDER: Final = "commands"
ANSWER_S: Final = 15.0  # that a process which works on a run takes at most
_PAUSE_S: Final = 0.05
_ANSWER: Final = ".answer"


class Command(Spec):
    """What a run is to do."""

    do: Literal["add", "cancel", "priority", "drain", "undrain"]
    jobs: tuple[JobSpec, ...] = Field((), description="to be added; their times count from now")
    names: tuple[str, ...] = Field((), description="of jobs, or of nodes")
    priority: int = 0


class Answer(Spec):
    """What came of it: a line for each thing that was done, or that could not be."""

    done: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


def send(run_folder: Path, command: Command) -> Path:
    """Leave a command for the run; its file. Raises OSError."""
    folder = run_folder / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{time.time_ns():020d}-{os.getpid()}.json"
    _write(path, command.model_dump_json())
    return path


def answer_of(path: Path) -> Answer | None:
    """The answer to a command, once; None = there is none yet."""
    file = path.with_suffix(_ANSWER)
    try:
        answer = Answer.model_validate_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    file.unlink(missing_ok=True)
    return answer


def sent(folder: Path | None, run_id: str, command: Command) -> Answer | None:
    """What came of a command; None = it waits, for no process works on the run. Raises UsageError."""
    state = run_state(folder, run_id)
    if state in (DONE, FAILED):
        raise UsageError("is over", field="run", value=run_id, expected="a run that goes on, or was stopped")
    try:
        path = send((folder or default_runs()) / run_id, command)
    except OSError as error:
        raise UsageError(f"cannot be sent: {error}", field="run", value=run_id) from error
    until_s = time.monotonic() + (0.0 if state == STOPPED else ANSWER_S)
    while True:
        if (answer := answer_of(path)) is not None:
            return answer
        if time.monotonic() >= until_s:
            break
        time.sleep(_PAUSE_S)
    if run_state(folder, run_id) in (DONE, FAILED):
        path.unlink(missing_ok=True)
        raise UsageError("ended before it obeyed", field="run", value=run_id)
    return None


def waiting(run_folder: Path) -> list[Path]:
    """The commands that wait, the oldest first."""
    try:
        names = os.listdir(run_folder / FOLDER)
    except FileNotFoundError:
        return []
    return [run_folder / FOLDER / name for name in sorted(names) if name.endswith(".json")]


def read(path: Path) -> Command | Answer:
    """A command; or the refusal of one that cannot be read."""
    try:
        return Command.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError) as error:
        return Answer(refused=(f"{path}: is no command: {error}",))


def answered(path: Path, answer: Answer) -> None:
    """The command is obeyed, or refused. Raises OSError."""
    _write(path.with_suffix(_ANSWER), json.dumps(answer.model_dump(mode="json")))
    path.unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}")
    part.write_text(text, encoding="utf-8")
    part.rename(path)
