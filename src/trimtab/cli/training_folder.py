"""The folder of a training: its checkpoint, its curves, its weights and its page."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.cli.output import note, progress_bar, where
from trimtab.words import counted

if TYPE_CHECKING:
    from trimtab.domain.artifact import Artifact
    from trimtab.learn.weight_search import Training

NEEDED = ("gymnasium", "torch")  # by commands that train or judge
CHECKPOINT, WEIGHTS, REPORT = "checkpoint.npz", "weights.safetensors", "report.html"
KEEP_EACH = 10  # generations between checkpoints


def check_folder(out: Path, *, report: bool) -> None:
    """Check, before any work, that results can be written there, and are no others. Raises UsageError."""
    from trimtab.errors import UsageError
    from trimtab.report.whole_files import check_writable

    results = (WEIGHTS, REPORT) if report else (WEIGHTS,)
    check_writable(out, (CHECKPOINT, *results))
    for name in results if not (out / CHECKPOINT).exists() else ():
        if (out / name).exists():
            problem, expected = f"has a {name} of something else", "a new folder, or one of the same training"
            raise UsageError(problem, field="out", value=str(out), expected=expected)


def train_in(out: Path, search: Training, name: str, *, resume: bool, quiet: bool) -> Artifact:
    """Train to the end, from the checkpoint in the folder if there is one; weights of this name.

    Raises UsageError for a checkpoint of another training.
    """
    from trimtab.learn.event_files import event_file
    from trimtab.report.whole_files import write_bytes

    checkpoint, generations = out / CHECKPOINT, search.setting.generations
    if resume and checkpoint.exists():
        search.restore(_arrays(checkpoint), str(checkpoint))
    with progress_bar(f"training {name}", quiet=quiet) as progress:
        try:
            with event_file(out, is_first=not search.history) as write:
                while not search.is_over:
                    made = search.step()
                    write(made.number, {"loss": made.loss, "best": made.best})
                    progress(made.number, generations)
                    if made.number % KEEP_EACH == 0:
                        write_bytes(checkpoint, _packed(search.checkpoint()))
            return search.artifact(name)
        except KeyboardInterrupt as interrupt:
            again = "the same command" if resume else "the same command without --no-resume"
            kept = f"{len(search.history)} of {counted(generations, 'generation')}"
            interrupt.add_note(f"{kept} are in {checkpoint}; {again} continues from there")
            raise
        finally:
            write_bytes(checkpoint, _packed(search.checkpoint()))


def write_training(
    out: Path,
    search: Training,
    weights: Artifact,
    title: str,
    told: Mapping[str, object],
    *,
    report: bool,
) -> None:
    """Write the weights, and the page with what is told of them."""
    from trimtab.report.learning_page import learning_page
    from trimtab.report.whole_files import write_bytes, write_text

    write_bytes(out / WEIGHTS, weights.content())
    if report:
        curves = {
            "loss": [g.loss for g in search.history],
            "best": [g.best for g in search.history],
        }
        numbers = [g.number for g in search.history]
        write_text(
            out / REPORT,
            learning_page(title, told, numbers, curves, step_title="generation"),
        )


def last_loss(search: Training) -> float:
    """The mean loss of the last generations."""
    last = search.history[-KEEP_EACH:]
    return sum(g.loss for g in last) / len(last)


def tell_training(out: Path, search: Training, name: str, *, report: bool, quiet: bool) -> None:
    """Print the loss, and what was written."""
    last = min(len(search.history), KEEP_EACH)
    print(
        f"{name}: loss {last_loss(search):+.4f} in the last {counted(last, 'generation')}; {search.loss_is}"
    )
    for file in (WEIGHTS, REPORT) if report else (WEIGHTS,):
        note(where(out / file, (out / file).stat().st_size), quiet=quiet)


def _packed(arrays: dict[str, Any]) -> bytes:
    import numpy as np

    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _arrays(path: Path) -> dict[str, Any]:
    """The arrays of a checkpoint. Raises UsageError."""
    import zipfile

    import numpy as np

    from trimtab.errors import UsageError

    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as found:
            return dict(found)
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        expected = "a checkpoint of `trimtab learn train`, or --no-resume"
        problem = f"can't be read: {error.strerror}" if isinstance(error, OSError) else "is no checkpoint"
        raise UsageError(problem, file=str(path), expected=expected) from error
