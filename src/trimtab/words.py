"""Numbers in sentences, for messages of every room: a leaf that imports nothing."""


def counted(count: float, one: str, many: str | None = None) -> str:
    """A number of things, such as "1 node" and "3 nodes"."""
    number = f"{count:,.0f}" if count == round(count) else f"{count:g}"
    return f"{number} {one if count == 1 else many or f'{one}s'}"


def duration_text(seconds: float) -> str:
    """A duration for people, such as "40 s", "12 min" and "2.5 h"."""
    if seconds < 90.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 5400.0 else f"{seconds / 3600.0:.1f} h"
