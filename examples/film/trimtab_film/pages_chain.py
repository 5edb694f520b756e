"""The chain for tables: rows → text and language of each → vectors → groups of near-duplicates → table."""

from __future__ import annotations

from typing import Any

from trimtab.chains import chain, stage
from trimtab_film.extras import require
from trimtab_film.pages import Embed, Language, Recognise, group_duplicates, read_items, write_items

require("pages", "the chain of pages", "rapidocr_onnxruntime", "py3langid", "wordllama", "PIL")

read = stage(read_items, name="read", cost_s=0.01)  # a file may change
recognise = stage(Recognise, name="recognise", deterministic=True, memory_gib=0.3, cost_s=0.1)
tell_language = stage(Language, name="language", deterministic=True, memory_gib=0.2, cost_s=0.002)
embed = stage(Embed, name="embed", deterministic=True, memory_gib=0.2, cost_s=0.001)
group = stage(group_duplicates, name="group", deterministic=True, cost_s=0.01)
collect = stage(write_items, name="collect", deterministic=True, cost_s=0.01)


@chain(name="near-duplicate-pages")
def near_duplicate_pages(table: str) -> Any:
    """Find near-duplicates among the pages or texts of a table, given by its path."""
    items = read(table)
    texts = recognise.map(items)
    return collect(items, texts, tell_language.map(texts), group(embed.map(texts)))
