"""One lookup with what surrounds it, and what a rule says about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from prefixscope.diagnosis.evidence import evidence, groups_text
from prefixscope.trace import GroupView, Header, Lookup, Ranges, Stored, Trace, intersect, subtract, union


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One named cause.

    ``cause`` is one of the codes in the module's table; ``sentence`` says it with this lookup's numbers; ``evidence``
    is what was recorded; ``remedy`` the flag or release that changes it; ``price`` what the remedy costs, measured
    where the trace holds the alternatives, else saying that it was not.
    """

    cause: str
    sentence: str
    evidence: tuple[str, ...]
    remedy: str
    price: str


class Case:
    """One lookup with what surrounds it: the closest earlier request, and what that one left behind."""

    def __init__(self, trace: Trace, lookup: Lookup, others: tuple[Trace, ...], repeat_of: Lookup | None) -> None:
        self.trace, self.lookup, self.others, self.repeat_of = trace, lookup, others, repeat_of
        self.header: Header = lookup.header
        # By the engine's own id: ours may have been sent twice.
        self.closest = trace.lookup(lookup.closest_engine_id) if lookup.closest_engine_id else None
        self.stored: dict[int, Stored] = {}
        if lookup.closest_engine_id:
            self.stored = {one.group.gid: one for one in trace.stored(lookup.closest_engine_id)}
        self.short = [view for view in lookup.groups if view.limiting and view.missing]

    @property
    def unit(self) -> int:
        """Hits are multiples of so many tokens."""
        return self.header.alignment or self.header.scheduler_block

    @property
    def repeats(self) -> bool:
        """Whether an earlier request had this prompt in full, as far as whole hash blocks tell."""
        return self.lookup.common_tokens + self.header.hash_block > self.lookup.tokens - 1

    @property
    def own_lookups(self) -> tuple[tuple[Lookup, ...], tuple[Lookup, ...]]:
        """This request's lookups before the one that is explained, and after it."""
        own = self.trace.all_lookups(self.lookup.engine_request_id)
        at = own.index(self.lookup)
        return own[:at], own[at + 1 :]

    @property
    def common_tokens(self) -> int:
        """Tokens shared with the closest earlier request: to the token where the trace says so, else in hash blocks."""
        exact = self.lookup.exact_tokens
        return self.lookup.common_tokens if exact is None else exact

    def once_held(self, view: GroupView) -> Ranges:
        """Missing blocks of a group that were cached once: the engine evicted them, or the closest earlier request had
        found or stored them."""
        return intersect(view.missing, union(view.evicted, self._left(view)))

    def gone(self, view: GroupView) -> Ranges:
        """Blocks of the prompt that were cached once, as in ``once_held``, and are not now."""
        left = subtract(self._left(view), view.cached) if view.known and view.scanned is None else ()
        return union(view.evicted, left)

    def never_made(self, view: GroupView) -> bool:
        """Whether a Mamba group misses states that the closest earlier request never made: no chunk ended there."""
        stored = self.stored.get(view.group.gid)
        if view.group.kind != "mamba" or not view.missing or self.closest is None:
            return False
        whole = self.closest.tokens // view.group.block_size
        null = () if stored is None else stored.null
        # A state inside the last, unfinished block is none that the store side counts.
        return not subtract(intersect(view.missing, [(0, whole)]), null)

    def _left(self, view: GroupView) -> Ranges:
        held: list[tuple[int, int]] = []
        if self.closest is not None:
            for one in self.closest.groups:
                if one.group.gid == view.group.gid:
                    held += one.cached
        stored = self.stored.get(view.group.gid)
        if stored is not None:
            held += stored.kept
        common = self.lookup.common_tokens // view.group.block_size
        return intersect([(0, common)], held)

    @property
    def ending(self) -> str:
        """``The 5 sliding-window groups (16-token blocks) end``: a sentence's beginning."""
        return f"The {self.groups(self.lookup.limiting)} {self.verb('end')}"

    def verb(self, verb: str) -> str:
        """The verb as the limiting groups' number asks for it: groups end, a group ends."""
        return verb if len(self.lookup.limiting) > 1 else f"{verb}s"

    def groups(self, gids: Iterable[int]) -> str:
        """These groups, the way a sentence names them."""
        return groups_text(self.lookup, gids)

    def say(self, cause: str, sentence: str, remedy: str, price: str, *more: str) -> Diagnosis:
        """The cause in words, with what was recorded of the lookup."""
        return Diagnosis(
            cause, sentence, (*evidence(self.lookup), *self._external(), *self._preempted(), *more), remedy, price
        )

    def _external(self) -> tuple[str, ...]:
        external, used = self.lookup.external_tokens, self.lookup.admitted_tokens
        if not external or used is None:
            return ()
        return (
            f"A KV connector supplied {external:,} tokens after the {used:,} that the admission took from this "
            f"engine's own cache: usage counts {used + external:,} as cached.",
        )

    def _preempted(self) -> tuple[str, ...]:
        # What usage reports is the first admission; this is where the time of a preempted request went.
        if self.lookup.admitted_tokens is None:
            return ()
        again = [(one.tokens, one.admitted_tokens) for one in self.own_lookups[1] if one.admitted_tokens is not None]
        return tuple(
            f"It was preempted and admitted again with {used:,} of {tokens:,} tokens cached: the other "
            f"{tokens - used:,} were computed a second time."
            for tokens, used in again
        )
