"""A small prefix cache: which blocks of a prompt were seen before."""

from __future__ import annotations

from collections import OrderedDict

BLOCK_TOKENS = 16
CHARS_PER_TOKEN = 4  # a token is four characters here


def tokens_of(text: str) -> int:
    """Tokens of a text, at least 1."""
    return max(1, -(-len(text) // CHARS_PER_TOKEN))


class PrefixCache:
    """Blocks seen, the least recently used forgotten first."""

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()

    def take(self, prompt: str) -> int:
        """Tokens of this prompt that are cached already; all its whole blocks are from now on."""
        size, chain, cached, is_prefix = BLOCK_TOKENS * CHARS_PER_TOKEN, 0, 0, True
        for begin in range(0, len(prompt) - size + 1, size):
            chain = hash((chain, prompt[begin : begin + size]))
            is_prefix = is_prefix and chain in self._blocks
            cached += BLOCK_TOKENS * is_prefix
            self._remember(chain)
        return cached

    def _remember(self, block: int) -> None:
        self._blocks[block] = None
        self._blocks.move_to_end(block)
        if len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)
