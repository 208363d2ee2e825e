"""The field's words: explained once, found wherever they occur, in every form they take."""

from __future__ import annotations

import pytest

from prefixscope.diagnosis.words import MEANINGS, WORDS
from prefixscope.glossary import TERMS, used


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("The 5 sliding-window groups end the hit", "sliding window"),
        ("hits are multiples of two scheduler blocks", "scheduler block"),
        ("set --prefix-cache-retention-interval to 1024", "retention interval"),
        ("extra blocks are evictable", "evicted"),
        ("a Mamba group", "Mamba"),
        ("with MTP", "MTP"),
    ],
)
def test_a_term_is_found_in_its_forms(text: str, term: str) -> None:
    """Plural, hyphen and other forms count as the term."""
    assert term in used([text])


def test_nothing_is_explained_that_does_not_occur() -> None:
    """A text without terms needs no glossary, and part of a word is no term."""
    assert used(["The wholehearted thought of whitespace."]) == {}


def test_every_term_is_a_sentence() -> None:
    """A meaning ends like a sentence and does not begin with its own term."""
    for term, meaning in TERMS.items():
        assert meaning.endswith("."), term
        assert not meaning.lower().startswith(term.lower()), term


def test_every_cause_has_a_meaning() -> None:
    """Each code with a name has one sentence that says what it means, without codes in it."""
    assert set(MEANINGS) == set(WORDS)
    for text in (*WORDS.values(), *MEANINGS.values()):
        assert "_" not in text
