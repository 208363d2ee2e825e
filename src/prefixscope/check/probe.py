"""What a check sends, in which order, and which further probes an answer calls for.

A healthy server gets three requests: a prompt, the same again, and its next turn. Each further probe answers a question
that the ones before left open: what can be read without asking the model is read first, each probe is announced with
its price, all together keep to the cap, and none is sent once the verdict and its cause are settled.
"""

from __future__ import annotations

from dataclasses import replace

from prefixscope import metrics, preflight
from prefixscope.check.asker import Asker, Messages, Say, fits_not
from prefixscope.check.budget import price
from prefixscope.check.evidence import (
    CALIBRATION,
    FILLER,
    FIRST,
    FRESH,
    LENGTH,
    PINNED,
    SPACED,
    TURN,
    Evidence,
    Failure,
    Sent,
    allowance,
    gained,
)
from prefixscope.check.readings import Readings
from prefixscope.client import Client
from prefixscope.errors import Rejected, TargetError
from prefixscope.preflight import Seen
from prefixscope.preflight import fact as f
from prefixscope.refusal import context_named

TOKENS = 6_400
"""Long enough for two of the largest blocks seen in hybrid models; a public incident note of October 2026 had 6,392."""
MIN_TOKENS = 16
MARGIN = 64
"""Tokens of the context that stay free: a next turn's own words, and what a length is only about."""
CALIBRATION_TOKENS = 200
ENOUGH_TOKENS, ENOUGH_BLOCKS = 2_048, 4
"""Where the block is reported, a prompt that long and of that many blocks is not too short to hit."""
MAX_PROBE_TOKENS = 12_800
BISECTIONS = 5
FRESH_PAIRS, LATER_SENDS = 3, 2
QUESTION = "And what followed from that?"
PIN = {"X-data-parallel-rank": "0"}
_ORDINALS = {3: "third", 4: "fourth", 5: "fifth"}


class _Settled(Exception):
    """A usage that can't be believed has settled the verdict; nothing more need be sent."""


class Prober:
    """One check of one server."""

    def __init__(self, client: Client, seen: Seen, model: str, *, tokens: int, api: str = "", say: Say) -> None:
        self.client, self.seen, self.model, self.say = client, seen, model, say
        self.facts, self.findings = preflight.facts(seen), preflight.findings(seen)
        self.ranks = f.number(self.facts, f.RANKS) or 1
        context = preflight.context(seen.models, model)
        self.tokens: int = tokens
        self.clipped: int | None = None
        self.asker = Asker(client, model, tokens=tokens, context=context, api=api, say=say)
        if context and 2 * MARGIN < context < tokens + MARGIN:
            self._shorten(context)
        self.block = f.number(self.facts, f.MAMBA_BLOCK) or f.number(self.facts, f.BLOCK)
        self.counted: metrics.Counters | None = None
        self.others: int | None = None
        self.left_out = False
        self.failure: Failure | None = None
        self.read = Readings(client, seen, self.asker)

    def evidence(self, *, min_reuse: float | None) -> Evidence:
        """Send everything, and say what was seen; a request that fails is part of the evidence."""
        try:
            self._probe()
        except _Settled:
            pass
        except TargetError as error:
            self.failure = Failure.of(error, asked=self.asker.asked, health=self.client.health())
        # Read once: counters that lag behind the last answer are left alone rather than waited for.
        total = self.read.since(self.read.first_page, 0)
        self.read.finish()
        return Evidence(
            url=self.client.url,
            model=self.model,
            api=self.asker.api,
            sends=tuple(self.asker.sends),
            facts=f.with_answers(self.facts, [sent.cached_tokens for sent in self.asker.sends]),
            findings=self.findings,
            min_reuse=min_reuse,
            spending=self.asker.spending,
            counted=self.counted,
            total=total,
            others_tokens=self.others,
            template_changes=self.read.changes,
            template_date=self.read.dated,
            template_time=self.read.timed,
            several_servers=self.read.several,
            split=self.read.split,
            one_cache=self.read.one_cache,
            clipped=self.clipped,
            failure=self.failure,
            left_out=self.left_out,
        )

    # --- the usual three, and what follows from them -------------------------------------------------------------

    def _probe(self) -> None:
        if not self.read.tokenizer:
            self._calibrate()
        messages, cold = self._first()
        before = self.client.metrics() if cold.cached_tokens is None else None
        second, answer = self._ask(FIRST, 2, messages)
        if before is not None:
            self.counted = self.read.since(before, second.prompt_tokens or 0)
        took, reach = gained(cold, second), second.prompt_tokens or 0
        if took is None:
            self._null(messages)
        elif not cold.prompt_tokens or not reach:
            return  # a share of an unknown number is none
        elif took and reach - (second.cached_tokens or 0) <= allowance(reach, self.block):
            self._turn(messages, answer)
        else:
            self._missed(messages, cold, second, answer)

    def _ask(self, series: str, index: int, messages: Messages, *, pin: bool = False) -> tuple[Sent, str]:
        """One request: what was counted, and the answer's text."""
        sent, answer = self.asker.ask(series, index, messages, headers=PIN if pin else None)
        if sent.doubt:
            raise _Settled
        return sent, answer.text

    def _calibrate(self) -> None:
        """Without a tokenizer a short request tells how long a token is."""
        tokens = min(CALIBRATION_TOKENS, self.tokens)
        messages = self.asker.conversation(tokens)
        chars = sum(len(one["content"]) for one in messages)
        self.say(
            "no tokenizer answers for this model: a short request first tells how long its tokens are "
            f"({price(1, tokens)}; at most about {chars:,}, where each character is one)"
        )
        try:
            self._ask(CALIBRATION, 1, messages)
        except Rejected as error:
            if error.status != 413 or fits_not(error):
                raise
            remedy = (
                "raise the limit of what stands before the engine (nginx: client_max_body_size), or ask the engine at "
                f"its own address; a smaller --tokens does not help: this request had about {tokens:,} tokens"
            )
            raise Rejected(error.what, status=error.status, cause=error.cause, remedy=remedy) from None
        self.read.begin()

    def _first(self) -> tuple[Messages, Sent]:
        """The cold send; a prompt that does not fit the context is cut to what the server names, or halved."""
        while True:
            messages = self.asker.conversation(self.tokens)
            try:
                return messages, self._ask(FIRST, 1, messages)[0]
            except Rejected as error:
                if not fits_not(error) or self.tokens < 2 * MIN_TOKENS:
                    raise
                self._shorten(context_named(error.what))

    def _shorten(self, context: int | None) -> None:
        """Ask for a prompt that fits a context; for half of it where that is not known, or fitted no better."""
        self.clipped = self.clipped or self.tokens
        fits = (context or 0) - MARGIN
        self.tokens = fits if MIN_TOKENS <= fits < self.tokens else max(MIN_TOKENS, self.tokens // 2)
        self.asker.context = context or self.asker.context
        told = f" of {context:,} tokens" if context else ""
        self.say(f"the prompt does not fit the context{told}: asking with about {self.tokens:,} tokens instead")

    def _turn(self, messages: Messages, answer: str) -> None:
        then = ({"role": "assistant", "content": answer or "…"}, {"role": "user", "content": QUESTION})
        try:
            self._ask(TURN, 1, (*messages, *then))
        except Rejected as error:
            if not fits_not(error):
                raise
            self.say("the next turn does not fit the context, and is left out")

    def _null(self, messages: Messages) -> None:
        # Some releases leave the field out where it would be 0: a third send may hit, and show that it is there.
        # Where the whole usage is missing it shows nothing.
        if self.asker.sends[-1].prompt_tokens and preflight.matching(
            preflight.situation(self.facts), "cached tokens are null"
        ):
            self._again(messages, 3, "no cached tokens are reported, as this release also does for 0")

    def _missed(self, messages: Messages, cold: Sent, second: Sent, answer: str) -> None:
        if str(f.value(self.facts, f.CACHING)) == "False":
            return
        ours = [cold.prompt_tokens or 0, second.prompt_tokens or 0]
        spent = self.read.since(self.read.base, sum(ours))
        queries = None if spent is None else spent.queries
        self.others = None if queries is None else max(0, queries - sum(ours))
        if gained(cold, second):
            self._again(messages, 3, "the second send reuses too little")
            self._turn(messages, answer)
            return
        # Templates and counters may explain the miss, and cost no request.
        self.read.compare_templates()
        self.read.who_answered(ours, queries, self.ranks)
        if self.read.changes or self.read.several or self.read.split:
            return
        third = gained(cold, self._again(messages, 3, "the second send reuses nothing"))
        if self._by_rank() or self._by_fault(bool(third)):
            return
        if queries is None and self._by_luck(messages, cold, bool(third)):
            return
        if not third:
            self._longer(cold.prompt_tokens or self.tokens)

    def _again(self, messages: Messages, index: int, why: str) -> Sent | None:
        what = f"{why}: sending the prompt a {_ORDINALS[index]} time"
        if not self._announced(what, 1, self.asker.expected(messages)):
            return None
        return self._ask(FIRST, index, messages)[0]

    def _announced(self, what: str, requests: int, tokens: int) -> bool:
        """Say what comes and what it costs; False, and nothing said, where it is over the cap."""
        if not self.asker.affords(requests, tokens):
            self.left_out = True
            return False
        self.say(f"{what} ({price(requests, tokens)})")
        return True

    # --- whose cache it was ---------------------------------------------------------------------------------------

    def _by_rank(self) -> bool:
        """Several engines whose counters do not tell: pinned to one, does a prompt hit?"""
        if self.ranks <= 1 or self.read.split is False:
            return False
        try:
            return bool(self._pair(PINNED, "several engines answer here: another prompt twice to rank 0", pin=True))
        except Rejected as error:
            if error.status not in (400, 422):
                raise
            self.say("the server does not let a request choose its rank")
            return False

    def _by_fault(self, third: bool) -> bool:
        """Whether the release is known, and known for certain, to behave so."""
        at = preflight.situation(self.facts)
        at = replace(at, sparse_groups=True) if third else at
        faults = preflight.matching(at, "second send misses" if third else "no send hits")
        return bool(faults) and faults[0].certain

    def _by_luck(self, messages: Messages, cold: Sent, third: bool) -> bool:
        """Without counters only more sends tell servers that take turns, or are picked at random.

        After a third send that hit, another prompt's second send may hit as well, by turns or by luck; after one that
        missed, a later send of the same prompt finds a server that has seen it. One cache alone does neither.
        """
        nobody = "nothing tells how many servers answer"
        if third:
            if self._pair(SPACED, f"{nobody}: another prompt twice, with a short request in between", filler=True):
                return True
            again = f"{nobody}: another prompt twice, which a server picked at random may hit"
            return any(self._pair(FRESH, again) for _ in range(FRESH_PAIRS))
        return any(gained(cold, self._again(messages, index, nobody)) for index in range(4, 4 + LATER_SENDS))

    # --- other prompts --------------------------------------------------------------------------------------------

    def _pair(self, series: str, why: str, *, tokens: int = 0, pin: bool = False, filler: bool = False) -> int | None:
        """A new prompt, twice; what the second send takes from the cache. None where the cap keeps it back."""
        tokens = tokens or self.tokens
        if not self._announced(why, 2 + filler, 2 * tokens + MIN_TOKENS * filler):
            return None
        messages = self.asker.conversation(tokens)
        cold, _ = self._ask(series, 1, messages, pin=pin)
        if filler:
            self._ask(FILLER, 1, self.asker.conversation(MIN_TOKENS))
        return gained(cold, self._ask(series, 2, messages, pin=pin)[0])

    def _longer(self, low: int) -> None:
        """Whether a longer prompt hits, and from which length on."""
        most, high = min(MAX_PROBE_TOKENS, (self.asker.context or MAX_PROBE_TOKENS + MARGIN) - MARGIN), low
        enough = max(ENOUGH_TOKENS, ENOUGH_BLOCKS * self.block) if self.block else most
        took: int | None = 0
        while high < min(most, enough) and not took:
            low, high = high, min(high * 4, most)
            try:
                took = self._pair(LENGTH, f"no send is reused: a prompt of about {high:,} tokens twice", tokens=high)
            except Rejected as error:
                if fits_not(error):
                    return
                raise
            if took is None:
                return
        for _ in range(BISECTIONS if took else 0):
            if high - low <= max(32, high // 16):
                return
            middle = (low + high) // 2
            why = f"looking for the shortest prompt that is reused: about {middle:,} tokens twice"
            took = self._pair(LENGTH, why, tokens=middle)
            if took is None:
                return
            low, high = (low, middle) if took else (middle, high)
