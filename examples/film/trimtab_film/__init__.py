"""The demonstration: a narrated film from a prompt, by small models that come with the package."""

from pathlib import Path


def weights_folder() -> Path:
    """Return the folder of the models' weights."""
    return Path(__file__).parent / "weights"
