"""Prompts × intervals × releases through the engine's own scheduler: one cell per send.

Every prompt meets an empty cache: the prefix cache is reset between prompts, so the pool holds one prompt's blocks and
building it costs little. All prompts of one release and interval are one replay, and a prompt is hashed once for all
intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from prefixscope.replay.case import Request, Segment, ServerSetting
from prefixscope.replay.geometry import Geometry
from prefixscope.replay.outcome import Outcome, Predicted
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
    ``evicted_blocks`` lost their content to this send, which only a pool of a given size does.
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
    evicted_blocks: int = 0

    @property
    def short_tokens(self) -> int:
        """Tokens short of full: what was reusable and was not reused."""
        return self.reusable_tokens - self.hit_tokens

    def to_json(self) -> dict[str, Any]:
        """``interval`` is the resolved one; ``default`` says that it is the release's own."""
        return {
            "release": self.release,
            "drafter_tokens": self.drafter_tokens,
            "interval": self.resolved,
            "default": self.interval is None,
            "pattern": self.pattern,
            "tokens": self.tokens,
            "send": self.send,
            "prompt_tokens": self.prompt_tokens,
            "reusable_tokens": self.reusable_tokens,
            "hit_tokens": self.hit_tokens,
            "short_tokens": self.short_tokens,
            "kept_blocks": None if self.kept_blocks is None else list(self.kept_blocks),
            "kept_bytes": None if self.kept_bytes is None else list(self.kept_bytes),
            "evicted_blocks": self.evicted_blocks,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What to ask each release: ``intervals`` × ``lengths`` × ``patterns`` × ``sends``, with each of ``drafters``.

    ``lengths`` are prompt tokens. The interval None, the release's default, comes first; one that it resolves to is not
    asked again; without intervals those of the sweep are asked, as the geometry takes them. A drafter is its draft
    tokens, None for none.
    """

    geometry: Geometry
    lengths: tuple[int, ...]
    intervals: tuple[Interval, ...] | None = None
    drafters: tuple[int | None, ...] = (None,)
    patterns: tuple[str, ...] = PATTERNS
    sends: int = SENDS
    pool_blocks: int | None = None

    def settings(self) -> list[ServerSetting]:
        """One for each replay."""
        return [
            ServerSetting(interval=interval, drafter_tokens=drafter, pool_blocks=self.pool_blocks)
            for drafter in self.drafters
            for interval in self.chosen_intervals
        ]

    @property
    def chosen_intervals(self) -> tuple[Interval, ...]:
        """The intervals that were given, or those of the sweep."""
        return default_intervals(self.geometry) if self.intervals is None else self.intervals

    @property
    def sends_per_replay(self) -> int:
        """Requests of one replay."""
        return len(self.lengths) * len(self.patterns) * self.sends

    @property
    def total_sends(self) -> int:
        """Requests of one release."""
        return self.sends_per_replay * len(self.chosen_intervals) * len(self.drafters)

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


Told = Callable[[int], None]
"""Takes how many more requests are done."""


def ask(replayer: Replayer, grid: Grid, *, told: Told | None = None) -> list[Cell]:
    """Every cell of one release, in the grid's order.

    Raises
    ------
    ReplayError
        where the release refuses the geometry or an interval.
    """
    wanted = {drafter: grid.requests(drafter) for drafter in grid.drafters}
    more = told or (lambda count: None)
    replayer.start()
    found: list[Cell] = []
    defaults: dict[int | None, int | str] = {}
    for setting in grid.settings():
        drafter = setting.drafter_tokens
        if setting.interval is not None and setting.interval == defaults.get(drafter):
            more(grid.sends_per_replay)  # the release's own default, which was asked already
            continue
        outcome = replayer.replay(grid.geometry, setting, wanted[drafter], progress=more)
        if setting.interval is None:
            defaults[drafter] = outcome.interval
        found += cells(grid.geometry, setting, outcome)
    return found


def cells(geometry: Geometry, setting: ServerSetting, outcome: Outcome) -> list[Cell]:
    """The rows of one replay of `Grid.requests` as cells."""
    found: list[Cell] = []
    for row in outcome.rows:
        tokens, pattern, send = row.id.split(" ")
        found.append(_cell(geometry, setting, outcome, row, int(tokens), pattern, int(send)))
    kept = {cell.tokens: cell for cell in found if cell.kept_blocks is not None}
    # The first send is the same prompt in every pattern, so it is counted once.
    return [
        replace(cell, kept_blocks=kept[cell.tokens].kept_blocks, kept_bytes=kept[cell.tokens].kept_bytes)
        if cell.send == 1 and cell.tokens in kept
        else cell
        for cell in found
    ]


def _cell(
    geometry: Geometry, setting: ServerSetting, outcome: Outcome, row: Predicted, tokens: int, pattern: str, send: int
) -> Cell:
    # A group described by its kind alone is built with a size that is nobody's.
    sizes = [
        size if group.bytes_per_block or group.fields else None
        for size, group in zip(outcome.block_bytes, geometry.groups, strict=True)
    ]
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
        evicted_blocks=row.evicted_blocks,
    )


SPARSE_KINDS = ("sliding", "mamba", "chunked")
"""Groups that an interval may thin out; a release with other groups alone takes no interval but its own default."""
INTERVALS = (0, 64, 512, 1024, 2048, 4096)


def takes_intervals(geometry: Geometry) -> bool:
    """Whether a retention interval does anything on this geometry."""
    return any(group.kind in SPARSE_KINDS for group in geometry.groups)


def default_intervals(geometry: Geometry) -> tuple[Interval, ...]:
    """The intervals of the sweep, each rounded up to what this geometry's releases take; the default alone where an
    interval has nothing to thin out."""
    if not takes_intervals(geometry):
        return (None,)
    block = geometry.scheduler_block
    return (None, *dict.fromkeys(-(-wanted // block) * block for wanted in INTERVALS), "dense")


def heat_grid(grid: Grid, *, columns: int = 100, rows: int = 20) -> Grid:
    """The second send of a repeat over ``columns`` lengths × ``rows`` intervals, up to the grid's longest prompt.

    Lengths lie in the middle of a scheduler block, a whole number of blocks apart. Intervals are 0, multiples of the
    scheduler block in equal ratios, and dense.
    """
    block, longest = grid.geometry.scheduler_block, max(grid.lengths)
    step = max(1, -(-longest // (block * columns)))
    lengths = tuple(block * step * n + block // 2 for n in range(-(-longest // (block * step))))
    intervals: tuple[Interval, ...] = (None,)
    if takes_intervals(grid.geometry):
        intervals = (0, *(block * one for one in _ladder(max(1, longest // block), rows - 2)), "dense")
    return replace(grid, lengths=tuple(n for n in lengths if n), intervals=intervals, patterns=PATTERNS[:1], sends=2)


def _ladder(most: int, steps: int) -> list[int]:
    """Whole numbers from 1 to ``most``, at most ``steps``, in ratios as equal as whole numbers allow."""
    found = [1]
    while len(found) < steps and found[-1] < most:
        left = steps - len(found)
        found.append(min(most, max(found[-1] + 1, round(found[-1] * (most / found[-1]) ** (1 / left)))))
    return found
