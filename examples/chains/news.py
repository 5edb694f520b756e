"""A chain: split a text, look at each sentence, join. Run it with `news.yaml`, or as this program."""

from __future__ import annotations

from typing import Any

from trimtab.chains import chain, run, stage


@stage
def sentences(text: str) -> list[str]:
    return [part.strip() for part in text.split(".") if part.strip()]


@stage(deterministic=True, retries=3, timeout_s=30)
def words(sentence: str) -> int:
    return len(sentence.split())


class Judge:
    """Loaded once per worker: a model would be read here."""

    def __init__(self) -> None:
        self.limit = 6

    def __call__(self, sentence: str, size: int) -> str:
        return f"{'long' if size > self.limit else 'short'}: {sentence}"


judge = stage(Judge, name="judge")


@stage
def report(lines: list[str]) -> str:
    return "\n".join(lines)


@chain
def news(text: str) -> Any:
    parts = sentences(text)
    return report(judge.map(parts, words.map(parts)))


if __name__ == "__main__":
    for result in run(news, ["One. Two words. This sentence has more than six words in it."]):
        print(result.value)
