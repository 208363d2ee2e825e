"""What a lookup shows, in sentences."""

from __future__ import annotations

from collections.abc import Iterable

from prefixscope.trace import GroupView, Lookup, ranges_text


def evidence(lookup: Lookup) -> tuple[str, ...]:
    """What was recorded of a lookup: one line for the engine, one per kind of group, one for what came before."""
    header = lookup.header
    drop = ", the block that speculative decoding gives up taken off" if any(step.drop for step in lookup.steps) else ""
    lines = [
        f"vLLM {header.version}, process {header.pid}: {lookup.tokens:,} tokens, hit {lookup.hit_tokens:,}; "
        f"a cache that holds everything would give {tokens_text(lookup.reachable_tokens)}{drop}.",
    ]
    alike: dict[tuple[object, ...], list[GroupView]] = {}
    for view in lookup.groups:
        if view.known and (view.needed is not None or view.cached):
            alike.setdefault(_looks(view), []).append(view)
    for views in alike.values():
        view, same = views[0], [one.group.gid for one in views]
        needed = "not asked" if view.needed is None else f"needed {ranges_text([view.needed])}"
        end = f", missing {ranges_text(view.missing)}" if view.missing else ""
        end += f", evicted since {ranges_text(view.evicted)}" if view.evicted else ""
        lines.append(f"{groups_text(lookup, same)}: cached {ranges_text(view.cached)}, {needed}{end}.")
    if lookup.closest_id:
        lines.append(f"The closest earlier request, {lookup.closest_id}, {shared_text(lookup)}.")
    return tuple(lines)


def shared_text(lookup: Lookup) -> str:
    """``had all of these 6,446 tokens``: what the closest earlier request has of the prompt, as a sentence goes on."""
    exact, whole, size = lookup.exact_tokens, lookup.common_tokens, lookup.header.hash_block
    total = lookup.prompt_tokens
    if exact is not None:
        return f"had all of these {total:,} tokens" if exact >= total else f"shares the first {exact:,} tokens"
    if whole + size > total - 1:
        return f"had all of these {total:,} tokens, as far as whole blocks of {size:,} tell ({whole:,} tokens)"
    return f"shares the first {whole:,} tokens, counted in whole blocks of {size:,}"


def _looks(view: GroupView) -> tuple[object, ...]:
    return view.group.kind, view.group.block_size, view.cached, view.needed, view.evicted, view.limiting


def groups_text(lookup: Lookup, gids: Iterable[int]) -> str:
    """``5 sliding-window groups (16-token blocks)``, the way a sentence names them."""
    views = [view for view in lookup.groups if view.group.gid in set(gids)]
    kinds = {(view.group.kind, view.group.block_size) for view in views}
    parts = []
    for kind, size in sorted(kinds):
        number = sum((view.group.kind, view.group.block_size) == (kind, size) for view in views)
        word = {"sliding": "sliding-window", "full": "full-attention", "mamba": "Mamba", "chunked": "chunked"}.get(
            kind, kind
        )
        parts.append(
            f"{number} {word} groups ({size}-token blocks)" if number > 1 else f"{word} group ({size}-token blocks)"
        )
    return " and ".join(parts)


def tokens_text(value: int | None) -> str:
    """``6,336``; in words where it is not known."""
    return "an unknown length" if value is None else f"{value:,}"


def seconds_text(seconds: float) -> str:
    """``21 ms``, ``4.2 s``, ``12 min``: as exact as a reader wants it."""
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:,.0f} ms"
    return f"{seconds:,.1f} s" if seconds < 600 else f"{seconds / 60:,.0f} min"
