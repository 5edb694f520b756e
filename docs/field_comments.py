"""Gives fields of classes the comment on their line as documentation, for the reference of the Python API."""

from __future__ import annotations

from typing import Any

import griffe


class FieldComments(griffe.Extension):
    """Documents attributes that have no docstring."""

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Take the comment on the attribute's line."""
        if attr.docstring is None and attr.lineno is not None and attr.parent and attr.parent.is_class:
            text = attr.lines_collection[attr.filepath][attr.lineno - 1].partition("  # ")[2]
            if text:
                attr.docstring = griffe.Docstring(text, parent=attr)
