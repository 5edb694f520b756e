"""A table of rendered pages to try the chain on: letters in three languages, each in three copies."""

from __future__ import annotations

import io
import random
import sys
from pathlib import Path

import polars as pl

from trimtab_film.extras import require

LETTERS = {
    "en": (
        ("The invoice for March is due on Friday.", "Please pay it by bank transfer."),
        ("The weather was warm and sunny all week.", "We walked along the river every day."),
        ("Our train leaves at nine in the morning.", "Please bring your ticket and your passport."),
    ),
    "de": (
        ("Die Rechnung ist bis Freitag zu bezahlen.", "Bitte überweisen Sie den Betrag."),
        ("Das Wetter war die ganze Woche sonnig.", "Wir sind jeden Tag gewandert."),
        ("Unser Zug fährt morgen um neun Uhr ab.", "Bitte bringen Sie Ihren Ausweis mit."),
    ),
    "fr": (
        ("La facture doit être payée avant vendredi.", "Merci de faire un virement."),
        ("Il a fait beau pendant toute la semaine.", "Nous avons marché tous les jours."),
        ("Notre train part demain matin à neuf heures.", "Apportez votre billet et votre passeport."),
    ),
}
COPIES = 3
PAGE_PX = (832, 192)


def sample_table(seed: int = 0) -> bytes:
    """Render the letters in random order as Parquet with columns item and page. Names say what is shown."""
    rng = random.Random(seed)
    rows = [
        {"item": f"{language}-{number}-{copy}", "page": _render(lines, rng)}
        for language, letters in LETTERS.items()
        for number, lines in enumerate(letters)
        for copy in range(COPIES)
    ]
    rng.shuffle(rows)
    file = io.BytesIO()
    pl.DataFrame(rows).write_parquet(file)
    return file.getvalue()


def _render(lines: tuple[str, ...], rng: random.Random) -> bytes:
    """Render a page: paper, size and place of the text differ from copy to copy."""
    require("pages", "rendering pages", "PIL")
    from PIL import Image, ImageDraw, ImageFont

    page = Image.new("RGB", PAGE_PX, (rng.randint(240, 255), rng.randint(240, 255), rng.randint(225, 250)))
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(rng.choice((28, 30, 32)))
    x, y = rng.randint(16, 36), rng.randint(24, 48)
    for k, line in enumerate(lines):
        draw.text((x, y + 64 * k), line.replace(" ", "   "), (20, 22, 40), font)  # clear of each other
    file = io.BytesIO()
    page.save(file, "PNG")
    return file.getvalue()


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else "pages.parquet").write_bytes(sample_table())
