"""Cause: how it was found, which groups there are, what a hit needs, what was stored, and the release's rule."""

from __future__ import annotations

from prefixscope.diagnosis import cause_words, groups_text
from prefixscope.notes.account import Account
from prefixscope.notes.markdown import Markdown, fence, table
from prefixscope.quantities import count, number
from prefixscope.sections.crosscheck import agreement
from prefixscope.terminal.ruler import fold, ruler
from prefixscope.trace import Group, Header, Lookup, Ranges, ranges_text

RULER_WIDTH = 96


def how_found(told: Account) -> str:
    """Where the cause was read from."""
    if told.main is None:
        return ""
    traced, engines = count(len(told.trace.lookups), "lookup"), count(len(told.trace.headers), "engine")
    sent = "" if told.material.brought else f" The lookup told here is of a {number(told.main.tokens)}-token prompt."
    return (
        f"prefixscope's tracer recorded inside vLLM what each lookup needed and found, and what each request stored: "
        f"{traced} of {engines}.{sent}"
    )


def groups(header: Header) -> str:
    """The engine's KV cache groups, and what follows from them for a hit."""
    kinds: dict[tuple[str, int, int | None, bool], int] = {}
    for group in header.groups:
        key = (_kind(group), group.block_size, group.window, group.drafter)
        kinds[key] = kinds.get(key, 0) + 1
    parts = []
    for (kind, size, window, drafter), times in kinds.items():
        about = [f"{size:,}-token blocks", *([f"window {window:,}"] if window else []), *(["drafter"] * drafter)]
        parts.append(f"{times:,} {kind} ({', '.join(about)})")
    total = count(len(header.groups), "KV cache group")
    every = "A hit is a length that every group can back" if len(header.groups) > 1 else "A hit is what it can back"
    least = (
        f"; the shortest prompt that can hit here has {header.min_prompt_tokens:,} tokens"
        if header.min_prompt_tokens is not None
        else ""
    )
    return (
        f"{total}: {'; '.join(parts)}. {every}, in multiples of the scheduler block, "
        f"{count(header.scheduler_block, 'token')}{least}."
    )


def drop(told: Account) -> str:
    """What speculative decoding gives up at lookup, in which groups, and what that asks of a window; else empty."""
    if told.main is None or not told.main.header.drop_groups:
        return ""
    header = told.main.header
    dropped = header.drop_groups
    own = any(group.drafter for group in header.groups)
    text = (
        f"With speculative decoding ({header.spec_method or 'a drafter'}) vLLM {header.version} gives up the last "
        f"cached block at lookup, so that it is computed again, in {len(dropped):,} of {len(header.groups):,} groups"
    )
    if len(dropped) == len(header.groups) and not own and len(header.groups) > 1:
        text += ": no group is the drafter's own, so the drop applies to all of them"
    return f"{text}.{_window(told.main)}"


def _window(lookup: Lookup) -> str:
    """How many blocks a sliding-window group then needs; empty where that is no more than its window."""
    for view in lookup.groups:
        if view.group.window and view.needed is not None:
            window = -(-(view.group.window - 1) // view.group.block_size)
            needed = view.needed[1] - view.needed[0]
            if needed > window:
                return (
                    f" A sliding-window group then has to back {count(needed, 'block')}: the {window:,} of its window "
                    f"and the {'one' if needed == window + 1 else f'{needed - window:,}'} given up."
                )
    return ""


def without_drafter(told: Account) -> str:
    """What the same prompt's second send needed and found without a drafter; empty where that was not traced."""
    return "" if told.plain is None else f"Without a drafter: {_met(told.plain)}"


def with_remedy(told: Account) -> str:
    """What the same prompt's second send needed and found with the remedy; empty where that was not traced."""
    return "" if told.helped is None else f"With {told.verdict.remedy_config}: {_met(told.helped)}"


def _met(lookup: Lookup) -> str:
    parts = []
    for views in fold(lookup):
        view = views[0]
        if view.needed is not None:
            lacking = f", of which {ranges_text(view.missing)} are missing" if view.missing else ", all of them stored"
            who = groups_text(lookup, [one.group.gid for one in views])
            parts.append(f"the {who} needed blocks {ranges_text([view.needed])}{lacking}")
    return f"{'; '.join(parts) or 'no group was asked'}. Hit: {lookup.hit_tokens:,} of {lookup.tokens:,} tokens."


def diagnosis(told: Account) -> str:
    """The cause in one paragraph, with this lookup's numbers."""
    return "" if told.diagnosis is None else told.diagnosis.sentence


def name(told: Account) -> str:
    """What the cause is called."""
    if told.diagnosis is None:
        return ""
    words = cause_words(told.diagnosis.cause)
    return f"{words[0].upper()}{words[1:]}."


def blocks(told: Account) -> Markdown | None:
    """Needed, stored and missing blocks by kind of group, first and last block both counted in; None untraced."""
    if told.main is None:
        return None
    kept = {one.group.gid: one for one in told.stored}
    rows = []
    for views in fold(told.main):
        view = views[0]
        stored = kept.get(view.group.gid)
        rows.append(
            (
                groups_text(told.main, [one.group.gid for one in views])
                + (", ending the hit" if view.limiting else ""),
                "not asked" if view.needed is None else _counted([view.needed]),
                _counted(view.cached) if view.known else "not scanned",
                _counted(view.missing) if view.missing else "none",
                "not traced" if stored is None else _counted(stored.kept),
                "not traced"
                if stored is None
                else _boundaries(stored.boundaries, told.main.header, view.group.block_size),
            )
        )
    columns = ("groups", "needed", "stored when asked", "missing", "kept by the send before", "replay boundary, token")
    return table(columns, rows)


def seen_by_whom(told: Account) -> str:
    """What of this was recorded and what follows from it."""
    if told.main is None:
        return ""
    whole = told.main.scan == "full"
    scanned = f"{'All' if whole else 'Only a part of the'} blocks of the lookup were scanned"
    store = (
        "both sides are recorded, the lookup's and the store's"
        if told.stored
        else "the store side of the send before was not recorded"
    )
    return f"{scanned}; {store}. Block numbers count from 0, in each group's own blocks, first and last included."


def predicted(told: Account) -> str:
    """How far vLLM's own scheduler, replayed with the same groups, gives the measured hits."""
    return agreement(told.material) or ""


def figure(told: Account) -> Markdown | None:
    """The blocks of the lookup in characters; None where nothing was traced."""
    return None if told.main is None else fence("\n".join(ruler(told.main, width=RULER_WIDTH)))


def untraced(told: Account) -> str:
    """What to do for a cause where none was traced; empty where one was."""
    if told.main is not None:
        return ""
    if not told.trace.lookups:
        return (
            "Which blocks were needed and which were there is not known: no engine was traced. Start the server "
            "through --serve-cmd, or with the tracer kit (`prefixscope trace kit DIR`) on its PYTHONPATH."
        )
    if told.material.unasked:
        return (
            "The trace holds the lookups of this run's answers; told here would be those of sends that ask for hit "
            "lengths (`prefixscope trace show RUN/trace` tells any)."
        )
    return "The trace holds no second send of the configuration that the verdict is about, so no block can be named."


def _kind(group: Group) -> str:
    return {"sliding": "sliding-window", "full": "full-attention", "mamba": "Mamba"}.get(group.kind, group.kind)


def _counted(ranges: Ranges | list[tuple[int, int]]) -> str:
    total = sum(stop - start for start, stop in ranges)
    return f"{ranges_text(ranges, limit=3)} ({total:,})" if total else "none"


def _boundaries(tokens: tuple[int, ...], header: Header, size: int) -> str:
    """The boundaries that the store side aimed at, each with the block of the group that holds it."""
    unit = header.alignment or header.scheduler_block
    aims = sorted({one // unit * unit for one in tokens})
    return ", ".join(f"{one:,} (in block {one // size:,})" for one in aims) or "—"
