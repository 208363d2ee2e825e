"""Prompts × intervals × releases through the engine's own scheduler: one cell per send.

Every prompt meets an empty cache: the prefix cache is reset between prompts, so the pool holds one prompt's blocks and
building it costs little. All prompts of one release and interval are one replay, and a prompt is hashed once for all
intervals.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from prefixscope.replay.case import Geometry, Outcome, Predicted, Request, Segment, ServerSetting
from prefixscope.replay.worker import Replayer
from prefixscope.setting import Interval

PATTERNS = ("repeat", "new_ending", "follow_up")
KEEP = 0.95
"""Of a prompt whose ending is new, the share that stays; as the baseline stage has it."""
ANSWER_TOKENS, MESSAGE_TOKENS = 128, 32
"""What a follow-up turn adds: the answer of the turn before, and a message."""
SENDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One send of one prompt on one release at one interval, predicted; tokens and blocks.

    ``tokens`` is the length of the first send, ``send`` counts from 1. ``reusable_tokens`` is what an earlier send has
    computed: the whole prompt for a repeat, the shared part for a new ending, prompt and answer for a follow-up turn.
    ``resolved`` is the interval that the release made of ``interval``. The ``kept_*`` are what the first send left in
    the cache, per group; None on later sends, bytes None too where the geometry does not know them.
    """

    release: str
    drafter_tokens: int | None
    interval: Interval
    resolved: int | str
    pattern: str
    tokens: int
    send: int
    prompt_tokens: int
    reusable_tokens: int
    hit_tokens: int
    kept_blocks: tuple[int, ...] | None = None
    kept_bytes: tuple[int | None, ...] | None = None

    @property
    def short_tokens(self) -> int:
        """Tokens short of full: what was reusable and was not reused."""
        return self.reusable_tokens - self.hit_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What to ask each release: ``intervals`` × ``lengths`` × ``patterns`` × ``sends``, with each of ``drafters``.

    ``lengths`` are prompt tokens. The interval None, the release's default, comes first; one that it resolves to is not
    asked again. A drafter is its draft tokens, None for none.
    """

    geometry: Geometry
    lengths: tuple[int, ...]
    intervals: tuple[Interval, ...]
    drafters: tuple[int | None, ...] = (None,)
    patterns: tuple[str, ...] = PATTERNS
    sends: int = SENDS
    pool_blocks: int | None = None

    def settings(self) -> list[ServerSetting]:
        """One for each replay."""
        return [
            ServerSetting(interval=interval, drafter_tokens=drafter, pool_blocks=self.pool_blocks)
            for drafter in self.drafters
            for interval in self.intervals
        ]

    def requests(self, drafter: int | None) -> list[Request]:
        """The sends of every prompt, with a reset before each first one."""
        found = []
        for tokens in self.lengths:
            for pattern in self.patterns:
                found.append(Request(id=f"reset {tokens} {pattern}", reset=True))
                found += prompts(tokens, pattern, self.sends, accepted=drafter or 0)
        return found


def prompts(tokens: int, pattern: str, sends: int, *, accepted: int = 0) -> list[Request]:
    """The sends of one prompt in one pattern, ids ``TOKENS PATTERN SEND``; the first is the same prompt in all."""
    shared = min(round(tokens * KEEP), tokens - 1)
    first: tuple[Segment, ...] = (
        (("text", shared), ("ending 1", tokens - shared)) if shared else (("ending 1", tokens),)
    )
    found = []
    turns = first
    for send in range(1, sends + 1):
        segments, answer = first, None
        if pattern == "new_ending":
            segments = (*first[:-1], (f"ending {send}", tokens - shared))
        elif pattern == "follow_up":
            segments, answer = turns, (f"answer {send}", ANSWER_TOKENS)
            turns = (*turns, answer, (f"message {send}", MESSAGE_TOKENS))
        found.append(
            Request(
                id=f"{tokens} {pattern} {send}",
                segments=segments,
                # The last answer is never seen again. Accepted drafts change nothing but the number of steps.
                answer=answer if send < sends else None,
                accepted=accepted if answer else 0,
                tally=send == 1 and pattern == PATTERNS[0],
            )
        )
    return found


def _reusable(tokens: int, pattern: str, send: int, prompt_tokens: int) -> int:
    if send == 1:
        return 0
    if pattern == "new_ending":
        return min(round(tokens * KEEP), tokens - 1)
    return prompt_tokens - MESSAGE_TOKENS if pattern == "follow_up" else prompt_tokens


Told = Callable[[int, int, float | None], None]
"""Takes the requests done, all requests, and the seconds left (None while nobody can say)."""


def ask(replayer: Replayer, grid: Grid, *, told: Told | None = None) -> list[Cell]:
    """Every cell of one release, in the grid's order.

    Raises
    ------
    ReplayError
        where the release refuses the geometry or an interval.
    """
    settings = grid.settings()
    wanted = {drafter: grid.requests(drafter) for drafter in grid.drafters}
    sends = sum(not one.reset for one in wanted[grid.drafters[0]])
    total, done, began = sends * len(settings), 0, time.monotonic()

    def more(count: int) -> None:
        nonlocal done
        done += count
        if told is not None:
            # The first replay of a release also makes its config and hashes every prompt: too slow to go by.
            left = (time.monotonic() - began) / done * (total - done) if done >= sends else None
            told(done, total, left)

    replayer.start()
    found: list[Cell] = []
    defaults: dict[int | None, int | str] = {}
    for setting in settings:
        drafter = setting.drafter_tokens
        if setting.interval is not None and setting.interval == defaults.get(drafter):
            more(sends)  # the release's own default, which was asked already
            continue
        outcome = replayer.replay(grid.geometry, setting, wanted[drafter], progress=more)
        if setting.interval is None:
            defaults[drafter] = outcome.interval
        found += cells(setting, outcome)
    return found


def cells(setting: ServerSetting, outcome: Outcome) -> list[Cell]:
    """The rows of one replay of `Grid.requests` as cells."""
    found: list[Cell] = []
    for row in outcome.rows:
        tokens, pattern, send = row.id.split(" ")
        found.append(_cell(setting, outcome, row, int(tokens), pattern, int(send)))
    kept = {cell.tokens: cell for cell in found if cell.kept_blocks is not None}
    # The first send is the same prompt in every pattern, so it is counted once.
    return [
        replace(cell, kept_blocks=kept[cell.tokens].kept_blocks, kept_bytes=kept[cell.tokens].kept_bytes)
        if cell.send == 1 and cell.tokens in kept
        else cell
        for cell in found
    ]


def _cell(setting: ServerSetting, outcome: Outcome, row: Predicted, tokens: int, pattern: str, send: int) -> Cell:
    sizes = outcome.block_bytes
    return Cell(
        release=outcome.release,
        drafter_tokens=setting.drafter_tokens,
        interval=setting.interval,
        resolved=outcome.interval,
        pattern=pattern,
        tokens=tokens,
        send=send,
        prompt_tokens=row.prompt_tokens,
        reusable_tokens=_reusable(tokens, pattern, send, row.prompt_tokens),
        hit_tokens=row.hit_tokens,
        kept_blocks=row.kept_blocks,
        kept_bytes=None
        if row.kept_blocks is None
        else tuple(
            None if each is None else each * blocks for each, blocks in zip(sizes, row.kept_blocks, strict=True)
        ),
    )
