"""Flags of a command line, read and changed without knowing the program: words that are not named stay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_MANY = 1_000_000
VALUES = {"--enable-lora": 0, "--lora-modules": _MANY, "--served-model-name": _MANY, "--api-key": _MANY}
"""How many values a flag takes at most; one where it is not named here. A positional may follow a flag that is full."""


def flag_name(word: str) -> str | None:
    """``--some_flag.key=value`` → ``--some-flag``; None for a value. vLLM takes underscores for dashes in names."""
    if not word.startswith("-") or word == "-" or word[1:2].isdigit():
        return None
    name = word.partition("=")[0]
    return name.partition(".")[0].replace("_", "-") if name.startswith("--") else name


@dataclass(slots=True)
class Flags:
    """A list of words seen as flags and their values.

    Values of a flag are the words up to the next flag, and no more than it takes.
    """

    words: list[str]

    def has(self, *names: str) -> bool:
        """Whether any of these flags is given, dotted forms (``--name.key value``) included."""
        return next(self._places(*names), None) is not None

    def values(self, name: str) -> list[str]:
        """Every value of this flag, in order, of each time it is given."""
        found: list[str] = []
        for start, stop in self._places(name):
            _, equals, value = self.words[start].partition("=")
            found += [value] if equals else self.words[start + 1 : stop]
        return found

    def value(self, name: str) -> str | None:
        """The value that wins: the last one."""
        found = self.values(name)
        return found[-1] if found else None

    def remove(self, *names: str) -> None:
        """Take these flags out, with their values."""
        for start, stop in reversed(list(self._places(*names))):
            del self.words[start:stop]

    def set(self, name: str, *values: str) -> None:
        """Give this flag once, with these values, where it stood or at the end."""
        first = next(self._places(name), (len(self.words), 0))[0]
        self.remove(name)
        self.words[first:first] = [name, *values]

    def _places(self, *names: str) -> Iterator[tuple[int, int]]:
        """``[start, stop)`` of each of these flags with its values."""
        for start, word in enumerate(self.words):
            name = flag_name(word)
            if name in names:
                # --name=value is complete; what follows belongs to nobody, or is positional.
                most = 0 if "=" in word else VALUES.get(name, 1)
                stop = start + 1
                while stop - start <= most and stop < len(self.words) and flag_name(self.words[stop]) is None:
                    stop += 1
                yield start, stop
