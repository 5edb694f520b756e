"""Trains the demonstration's models anew and writes their weights: `python -m trimtab_film.train`."""

from __future__ import annotations

from trimtab_film.train.all_models import main  # there: spawned processes do not import a __main__

main()
