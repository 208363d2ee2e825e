"""What is read beside the answers, at no cost for the model: counters, who answered, and how a template renders."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from prefixscope import metrics, prompts
from prefixscope.check import balance
from prefixscope.check.asker import SAMPLE_CHARS, Asker
from prefixscope.client import Client
from prefixscope.preflight import Seen

PAGES = 4
"""Further reads of ``/metrics``: of two servers picked at random both have answered one of five with 15 in 16."""


class Readings:
    """Of one check; the fields are those of ``Evidence``."""

    def __init__(self, client: Client, seen: Seen, asker: Asker) -> None:
        self.client, self.asker = client, asker
        self.first_page = self.base = seen.page
        self.pages = [seen.page]
        self.changes: bool | None = None
        self.split: bool | None = None
        self.dated = self.timed = self.several = self.one_cache = False
        self._rendered = asker.sample()

    @property
    def tokenizer(self) -> bool:
        """Whether the server counts a prompt's tokens without computing it."""
        return self._rendered is not None

    def begin(self) -> None:
        """Count from here: what was sent before is not one of the sends that are compared."""
        if self.base is not None:
            self.base = self._page()

    def since(self, before: str | None, ours: int) -> metrics.Counters | None:
        """What the counters added since a page, once they have counted at least ``ours``; None without a page."""
        if before is None:
            return None
        start, delta = metrics.counters(before), None
        for wait_s in (0.0, 0.05, 0.2):
            # The counters are written after the answer is sent; a page read at once may not have them yet.
            time.sleep(wait_s)
            delta = metrics.counters(self._page()).since(start)
            if delta.queries is None or delta.queries >= ours:
                break
        return delta

    def who_answered(self, ours: Sequence[int], queries: int | None, engines: int) -> None:
        """Fill in ``several``, ``split`` and ``one_cache`` from pages read now; ``queries`` were added by ``ours``."""
        self.split = balance.split(self.base, self.pages[-1], ours)
        for _ in range(PAGES if self.base else 0):
            self._page()
        self.several = balance.several_processes(self.pages) or balance.missed_some(queries, ours)
        self.one_cache = not self.several and queries == sum(ours) and engines <= 1

    def finish(self) -> None:
        """The last look: whether all the pages were one process's, and how the template renders now."""
        self.several = self.several or balance.several_processes(self.pages)
        self.compare_templates()

    def compare_templates(self) -> None:
        """Render the same message again, and look for today's date in it."""
        if self._rendered is None or self.changes is not None or not self.asker.templated:
            return
        again = self.asker.sample()
        if again:
            self.changes = again != self._rendered
            rendered = self.client.detokenize(again, self.asker.model) or ""
            around = rendered.replace(prompts.text(1, SAMPLE_CHARS), "")
            self.dated = any(day in around for day in _days())
            self.timed = self.dated and any(minute in around for minute in _minutes())

    def _page(self) -> str | None:
        self.pages.append(self.client.metrics())
        return self.pages[-1]


def _days() -> tuple[str, ...]:
    """How a template may write today; yesterday's and tomorrow's too, for another time zone."""
    today = datetime.now(timezone.utc)
    forms = ("%Y-%m-%d", "%d %b %Y", "%d %B %Y", "%B %d, %Y", "%b %d, %Y", "%A, %B %d", "%Y/%m/%d", "%d/%m/%Y")
    return tuple((today + timedelta(days=days)).strftime(form) for days in (-1, 0, 1) for form in forms)


def _minutes() -> tuple[str, ...]:
    """How a template may write this minute, or the one before; the hour may be another zone's, so UTC's and ours."""
    zones = (datetime.now(timezone.utc), datetime.now())
    return tuple(
        (now - timedelta(minutes=ago)).strftime(f"{hour}:%M")
        for now in zones
        for ago in (0, 1)
        for hour in ("%H", "%I")
    )
