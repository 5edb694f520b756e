"""Trains the demonstration's models anew and writes their weights: `python -m trimtab.chains.demo.train`."""

from __future__ import annotations

from trimtab.chains.demo.train.all_models import main  # there: spawned processes do not import a __main__

main()
