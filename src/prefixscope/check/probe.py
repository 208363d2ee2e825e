"""What a check sends, in which order, and which further probes an answer calls for.

A healthy server gets three requests: a prompt, the same again, and its next turn. Each further probe answers a question
that the ones before left open; it is announced, and all of them together are at most ``MAX_SENDS`` requests.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from itertools import pairwise

from prefixscope import metrics, preflight
from prefixscope.check.asker import Asker, Messages, Say, too_long
from prefixscope.check.evidence import FIRST, LENGTH, PINNED, SPACED, TURN, Evidence, Sent, allowance, gained, pairs
from prefixscope.client import Client
from prefixscope.errors import Rejected, TargetError
from prefixscope.preflight import Seen
from prefixscope.preflight import fact as f

TOKENS = 6_400
"""Long enough for two of the largest blocks seen in hybrid models; the first report of the incident had 6,392."""
MIN_TOKENS = 16
MAX_SENDS = 20
MAX_PROBE_TOKENS = 32_000
BISECTIONS = 5
QUESTION = "And what followed from that?"
PIN = {"X-data-parallel-rank": "0"}
PROCESS = ("process_start_time_seconds", "vllm:prefix_cache_queries_created")
"""Metrics that differ between two processes and never change in one."""


class Prober:
    """One check of one server."""

    def __init__(self, client: Client, seen: Seen, model: str, *, tokens: int, say: Say) -> None:
        self.client, self.seen, self.model, self.say = client, seen, model, say
        self.facts, self.findings = preflight.facts(seen), preflight.findings(seen)
        context = next((m.max_model_len for m in seen.models if m.max_model_len), None)
        self.tokens = min(tokens, context - 64) if context and context > 128 else tokens
        self.asker = Asker(client, model, context=context, say=say)
        self.block = f.number(self.facts, f.MAMBA_BLOCK) or f.number(self.facts, f.BLOCK)
        self.counted: metrics.Counters | None = None
        self.others: int | None = None
        self.changes: bool | None = None
        self.dated = self.several = self.left_out = self.dead = False
        self.failure = ""
        self._pages = [seen.page]
        self._sample = self.asker.sample()

    def evidence(self, *, min_reuse: float | None) -> Evidence:
        """Send everything, and say what was seen.

        Raises
        ------
        TargetError
            where not even the first request is answered; what fails later is part of the evidence.
        """
        try:
            self._probe()
        except TargetError as error:
            self._failed(error)
        # Read once: counters that lag behind the last answer are left alone rather than waited for.
        total = self._delta(self.seen.page, 0)
        self.several = self.several or self._differing_pages()
        self._compare_templates()
        return Evidence(
            url=self.client.url,
            model=self.model,
            sends=tuple(self.asker.sends),
            facts=self.facts,
            findings=self.findings,
            min_reuse=min_reuse,
            counted=self.counted,
            total=total,
            others_tokens=self.others,
            template_changes=self.changes,
            template_date=self.dated,
            several_servers=self.several,
            failure=self.failure,
            dead=self.dead,
            left_out=self.left_out,
        )

    def _failed(self, error: TargetError) -> None:
        # A 500 is the engine's own end, and worth a finding even at the first request.
        self.dead = not self.client.healthy()
        if not self.asker.sends and not (isinstance(error, Rejected) and error.status == 500):
            raise error
        self.failure = str(error)

    # --- the usual three, and what follows from them -------------------------------------------------------------

    def _probe(self) -> None:
        messages, cold = self._first()
        before = self.client.metrics() if cold.cached_tokens is None else None
        second, answer = self.asker.ask(FIRST, 2, messages)
        if before is not None:
            self.counted = self._delta(before, second.prompt_tokens or 0)
        took = gained(cold, second)
        reach = second.prompt_tokens or 0
        if took is None:
            self._null(messages)
        elif took and reach - (second.cached_tokens or 0) <= allowance(reach, self.block):
            self._turn(messages, answer.text)
        else:
            self._missed(messages, cold, answer.text)

    def _first(self) -> tuple[Messages, Sent]:
        """The cold send; a prompt that does not fit the context is halved until it does."""
        while True:
            messages = self.asker.conversation(self.tokens)
            try:
                return messages, self.asker.send(FIRST, 1, messages)
            except Rejected as error:
                if not too_long(error) or self.tokens < 2 * MIN_TOKENS:
                    raise
                self.tokens //= 2
                self.say(f"the prompt does not fit the context; asking with about {self.tokens:,} tokens")

    def _turn(self, messages: Messages, answer: str) -> None:
        then = ({"role": "assistant", "content": answer or "…"}, {"role": "user", "content": QUESTION})
        self.asker.send(TURN, 1, (*messages, *then))

    def _null(self, messages: Messages) -> None:
        # Some releases leave the field out where it would be 0: a third send may hit, and show that it is there.
        if preflight.matching(preflight.situation(self.facts), "cached tokens are null"):
            self.say("no cached tokens are reported, as this release also does for 0: sending the prompt a third time")
            self.asker.send(FIRST, 3, messages)

    def _missed(self, messages: Messages, cold: Sent, answer: str) -> None:
        if str(f.value(self.facts, f.CACHING)) == "False":
            return
        ours = sum(s.prompt_tokens or 0 for s in self.asker.sends)
        spent = self._delta(self.seen.page, ours)
        self.others = None if spent is None or spent.queries is None else max(0, spent.queries - ours)
        self.say("the second send reuses too little: sending the prompt a third time")
        third = self.asker.send(FIRST, 3, messages)
        if gained(cold, self.asker.sends[-2]):
            self._turn(messages, answer)
            return
        self._compare_templates()
        self._pages += [self.client.metrics(), self.client.metrics()]
        self.several = self._differing_pages()
        if (f.number(self.facts, f.RANKS) or 0) > 1:
            self._pinned()
        elif self.seen.page is None:
            self._spaced()
        if not gained(cold, third) and not self.changes and not self._explained():
            self._longer()

    def _explained(self) -> bool:
        return self.several or any(gained(a, b) for name in (PINNED, SPACED) for a, b in pairs(self.asker.sends, name))

    # --- further probes -------------------------------------------------------------------------------------------

    def _pair(self, series: str, tokens: int, *, pin: bool = False, filler: bool = False) -> int | None:
        """A new prompt, twice; what the second send takes from the cache. None where the cap is reached."""
        if len(self.asker.sends) + 2 + filler > MAX_SENDS:
            self.left_out = True
            return None
        messages, headers = self.asker.conversation(tokens), PIN if pin else None
        cold = self.asker.send(series, 1, messages, headers=headers)
        if filler:
            self.client.chat(
                self.asker.conversation(MIN_TOKENS), model=self.model, extra=dict.fromkeys(self.asker.dropped)
            )
        return gained(cold, self.asker.send(series, 2, messages, headers=headers))

    def _pinned(self) -> None:
        self.say("several engines answer here: sending a prompt twice to rank 0")
        try:
            self._pair(PINNED, self.tokens, pin=True)
        except Rejected:
            self.say("the server does not let a request choose its rank")

    def _spaced(self) -> None:
        self.say("nothing tells how many servers answer: sending a prompt twice with a short request in between")
        self._pair(SPACED, self.tokens, filler=True)

    def _longer(self) -> None:
        """Whether a longer prompt hits, and from which length on."""
        most = min(MAX_PROBE_TOKENS, (self.asker.context or MAX_PROBE_TOKENS + 64) - 64)
        low = high = self.asker.sends[0].prompt_tokens or self.tokens
        while high < most:
            high = min(high * 4, most)
            self.say(f"no send is reused: trying a prompt of about {high:,} tokens")
            try:
                took = self._pair(LENGTH, high)
            except Rejected as error:
                if too_long(error):
                    return
                raise
            if took is None:
                return
            if took:
                break
            low = high
        else:
            return
        for _ in range(BISECTIONS):
            if high - low <= max(32, high // 16):
                return
            middle = (low + high) // 2
            self.say(f"looking for the shortest prompt that is reused: about {middle:,} tokens")
            took = self._pair(LENGTH, middle)
            if took is None:
                return
            low, high = (low, middle) if took else (middle, high)

    # --- what is read beside the answers --------------------------------------------------------------------------

    def _delta(self, before: str | None, ours: int) -> metrics.Counters | None:
        """What the counters added since a page, once they have counted at least ``ours``; None without a page."""
        if before is None:
            return None
        start, delta = metrics.counters(before), None
        for wait_s in (0.0, 0.05, 0.2):
            # The counters are written after the answer is sent; a page read at once may not have them yet.
            time.sleep(wait_s)
            page = self.client.metrics()
            self._pages.append(page)
            delta = metrics.counters(page).since(start)
            if delta.queries is None or delta.queries >= ours:
                break
        return delta

    def _differing_pages(self) -> bool:
        """Whether ``/metrics`` came from different processes: a balancer stands in front of several servers."""
        pages = [page for page in self._pages if page]
        for name in PROCESS:
            values = {tuple(sorted(value for _, value in metrics.samples(page, name))) for page in pages}
            if len(values - {()}) > 1:
                return True
        queries = [n for page in pages if (n := metrics.counters(page).queries) is not None]
        return any(later < earlier for earlier, later in pairwise(queries))

    def _compare_templates(self) -> None:
        """Render the same message again, and look for today's date in it."""
        if self._sample is None or self.changes is not None:
            return
        again = self.asker.sample()
        if again:
            self.changes = again != self._sample
            rendered = self.client.detokenize(again, self.model) or ""
            self.dated = any(day in rendered for day in _days())


def _days() -> tuple[str, ...]:
    """How a template may write today; yesterday's and tomorrow's too, for another time zone."""
    today = datetime.now(timezone.utc)
    forms = ("%Y-%m-%d", "%d %b %Y", "%d %B %Y", "%B %d, %Y", "%b %d, %Y", "%A, %B %d", "%Y/%m/%d", "%d/%m/%Y")
    return tuple((today + timedelta(days=days)).strftime(form) for days in (-1, 0, 1) for form in forms)
