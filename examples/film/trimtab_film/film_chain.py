"""The chain of the demonstration: prompt → story → pictures and speech of each panel → film."""

from __future__ import annotations

from typing import Any

from trimtab.chains import chain, stage
from trimtab_film.extras import require
from trimtab_film.film import Film
from trimtab_film.film_stages import Painter, Story, Voice

require("", "the film", "torch", "safetensors", "hibari", "onnxruntime", "av", "PIL")

write = stage(Story, name="write", deterministic=True, memory_gib=0.4, cost_s=0.5)
paint = stage(Painter, name="paint", deterministic=True, memory_gib=0.5, cost_s=0.6)
speak = stage(Voice, name="speak", deterministic=True, memory_gib=0.2, cost_s=0.3)
join = stage(Film, name="join", deterministic=True, memory_gib=0.3, cost_s=12.0)


@chain(name="narrated-film")
def narrated_film(prompt: str, seed: int = 0) -> Any:
    """Make a film of a prompt."""
    panels = write(prompt, seed)
    return join(panels, paint.map(panels, seed=seed), speak.map(panels))
