"""What was set: the facts of every side next to each other, and which of them differ."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from prefixscope import redact
from prefixscope.comparison.side import Side
from prefixscope.flags import flag_name
from prefixscope.frames.served import BY_SERVER
from prefixscope.material import NAMES, group_words, plain
from prefixscope.setting import interval_label

VERSION, MODELS, INTERVAL, DRAFT, MACHINE = (
    "vLLM version", "served models", "retention interval", "draft tokens a step", "machine: ",
)  # fmt: skip
STARTED = "started as"
_RENAMED = {"retention interval reported": INTERVAL}
_OUTCOMES = {"vllm version", "mean acceptance length", "mean prompt so far, tokens", "counters of the prefix cache"}
_FOLLOWS = {
    "KV cache groups", "scheduler block, tokens", "hash block, tokens", "pool, tokens", "block size reported, tokens",
    "Mamba block, tokens",
}  # fmt: skip
"""What a release makes of a model by itself."""
_OWN_FLAGS = {"--port", "--host", "--api-key", "--served-model-name"}
_FOLDERS = re.compile(r"(?<![\w/])(?:[\w.+-]+/){2,}(?=[\w.+-])")
"""Folders of a relative path: as good as another machine's. An owner and a name alone are a model."""
_CUT = "characters more)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One fact of every side, None where it is unknown.

    ``kind`` is cause (a changed result may come from it), follows (a release makes it so) or about (the record itself).
    ``of`` is the one server that was asked, where others were started otherwise; ``partial``: only of the sides with a
    value were like servers compared.
    """

    name: str
    values: tuple[str | None, ...]
    kind: str = "cause"
    of: str = ""
    partial: bool = False

    @property
    def state(self) -> str:
        """differs · same · unknown (on some sides)."""
        known = {value for value in self.values if value is not None}
        return "differs" if len(known) > 1 else "unknown" if None in self.values else "same"


def facts(sides: Sequence[Side], settings: Sequence[str]) -> tuple[Fact, ...]:
    """Every fact that some side knows; what depends on a server's setting only for ``settings``, which all have."""
    found: dict[str, Fact] = {}

    def add(name: str, values: Iterable[Any], kind: str, of: str = "") -> None:
        shown = tuple(None if value in (None, "", "None") else str(value) for value in values)
        if any(value is not None for value in shown):
            found.setdefault(name, Fact(name=name, values=shown, kind=kind, of=of))

    add(VERSION, (side.version for side in sides), "cause")
    for name, values, kind in _resolved(sides, settings):
        add(name, values, kind)
    resolved = {name.partition(" (")[0] for name in found}
    for name, values, of in _served(sides):
        if name not in resolved:
            add(name, values, "follows" if name in _FOLLOWS or _defaulted(name, sides) else "cause", of)
    for name, values in _flags(sides, settings):
        add(name, values, "cause")
    for name, values in _environment(sides):
        shown = NAMES.get(name, name.replace("_", " "))
        if name in ("prefixscope", "python"):
            add(f"measured with: {shown}", values, "about")
        elif all(_kind(side) != "attached" for side in sides):
            add(f"{MACHINE}{shown}", values, "cause")
        else:  # what attaches to a server from elsewhere says nothing of the machine that serves
            add(f"asked from: {shown}", values, "about")
    targets = [(side.version, str((side.manifest.get("target") or {}).get("label") or "")) for side in sides]
    if len({label.replace(version or "", "") for version, label in targets}) > 1:  # else the version says it all
        add("target", (label for _, label in targets), "about")
    return tuple(found.values())


def joined(whole: Sequence[Fact], pairs: Sequence[Sequence[Fact]]) -> tuple[Fact, ...]:
    """The facts of all sides, and what differs between the base and one other side and is no fact of all sides.

    ``pairs`` holds the facts of the base and each further side, in order.
    """
    known, more = {one.name: one.values for one in whole}, dict[tuple[str, str | None], Fact]()
    for place, found in enumerate(pairs, start=1):
        for one in found:
            told = known.get(one.name)
            if one.state == "differs" and (told is None or (told[0], told[place]) != one.values):
                first = more.get((one.name, one.values[0]))
                values = list(first.values if first else (one.values[0], *[None] * len(pairs)))
                values[place] = one.values[1]
                more[one.name, one.values[0]] = replace(one, values=tuple(values), partial=None in values)
    return (*whole, *more.values())


def causes(found: Iterable[Fact]) -> list[str]:
    """What differs and may be the cause of a changed result; a machine counts once."""
    names = different(found, "cause")
    return list(dict.fromkeys("machine" if name.startswith(MACHINE) else name for name in names))


def different(found: Iterable[Fact], kind: str) -> list[str]:
    """The names of what differs, of one kind."""
    return [one.name for one in found if one.kind == kind and one.state == "differs"]


def labels(sides: Sequence[Side], found: Sequence[Fact]) -> tuple[str, ...]:
    """What to call each side: by the first fact that tells them all apart, else by its letter."""
    fact = telling(found, len(sides))
    return (
        tuple(side.letter for side in sides)
        if fact is None
        else tuple(f"{side.letter}, {_named(fact, value)}" for side, value in zip(sides, fact.values, strict=True))
    )


def telling(found: Sequence[Fact], sides: int) -> Fact | None:
    """The fact to call sides by: known on all, different on each."""
    ranked = [VERSION, INTERVAL, DRAFT, MODELS, STARTED, *(f.name for f in found if f.name.startswith(("--", MACHINE)))]
    apart = {f.name: f for f in found if None not in f.values and len(set(f.values)) == sides and f.kind != "about"}
    return next((apart[name] for name in ranked if name in apart), None)


def span(sides: Sequence[Side], found: Sequence[Fact]) -> str:
    """``From vLLM 0.29.0 to 0.30.0``, of two sides."""
    fact = telling(found, len(sides))
    if fact is None:
        return f"From {sides[0].letter} to {sides[1].letter}"
    return f"From {_named(fact, fact.values[0])} to {fact.values[1]}"


def _named(fact: Fact, value: str | None) -> str:
    prefix = {VERSION: "vLLM", MODELS: "", STARTED: "", INTERVAL: "interval", DRAFT: "draft length"}
    return f"{prefix.get(fact.name, fact.name.removeprefix(MACHINE))} {value}".strip()


def _kind(side: Side) -> str:
    return str((side.manifest.get("target") or {}).get("kind", ""))


def _defaulted(name: str, sides: Sequence[Side]) -> bool:
    """Whether a reported interval is the release's own: our servers get theirs by setting, which is compared itself."""
    return name == INTERVAL and all(_kind(side) != "attached" for side in sides)


def _served(sides: Sequence[Side]) -> Iterable[tuple[str, list[str], str]]:
    """What servers said of themselves, and of which server alone it is known: a run asks its first one."""
    tables = [
        {
            _RENAMED.get(name, name): plain(one.get("value"))
            for one in side.manifest.get("facts", [])
            if (name := str(one.get("name"))) not in _OUTCOMES
        }
        for side in sides
    ]
    by_server = {_RENAMED.get(name, name) for name in BY_SERVER}
    started = [
        list(dict.fromkeys(str(one.get("setting", {}).get("label")) for one in side.manifest.get("servers", [])))
        for side in sides
    ]
    first = {labels[0] if labels else "" for labels in started}
    alone = next(iter(first)) if any(len(labels) > 1 for labels in started) else ""
    for name in dict.fromkeys(name for table in tables for name in table):
        if name not in by_server or len(first) == 1:
            yield name, [table.get(name, "") for table in tables], alone if name in by_server else ""


def _resolved(sides: Sequence[Side], settings: Sequence[str]) -> Iterable[tuple[str, list[Any], str]]:
    """What traced engines resolved their settings to; a setting is named where it is not the same for all."""
    rows: dict[str, dict[str, tuple[Any, ...]]] = {}
    for setting in settings:
        cases = [side.engines.get(setting) for side in sides]
        if not any(cases):
            continue
        values = {
            "KV cache groups": [
                None if one is None else group_words({"groups": [asdict(g) for g in one.geometry.groups]})
                for one in cases
            ],
            "scheduler block, tokens": [None if one is None else plain(one.geometry.scheduler_block) for one in cases],
            "hash block, tokens": [None if one is None else plain(one.geometry.hash_block) for one in cases],
            "pool, blocks": [None if one is None else plain(one.geometry.pool_blocks) for one in cases],
            INTERVAL: [None if one is None else interval_label(one.setting.interval) for one in cases],
            DRAFT: [None if one is None else plain(one.setting.drafter_tokens) or "no drafter" for one in cases],
            "batched tokens a step, at most": [
                None if one is None else plain(one.setting.max_batched_tokens) for one in cases
            ],
            "requests at once, at most": [None if one is None else plain(one.setting.max_seqs) for one in cases],
        }
        for name, found in values.items():
            rows.setdefault(name, {})[setting] = tuple(found)
    for name, by_setting in rows.items():
        kind = "follows" if name in _FOLLOWS or _defaulted(name, sides) else "cause"
        different = {setting: found for setting, found in by_setting.items() if len(set(found)) > 1}
        if len(set(by_setting.values())) == 1:
            yield name, list(next(iter(by_setting.values()))), kind
        elif not different:
            words = ", ".join(f"{found[0]} ({setting})" for setting, found in by_setting.items())
            yield name, [words] * len(sides), kind
        else:
            for apart in dict.fromkeys(different.values()):
                named = "; ".join(setting for setting, values in different.items() if values == apart)
                yield f"{name} ({named})", list(apart), kind


def _flags(sides: Sequence[Side], settings: Sequence[str]) -> Iterable[tuple[str, list[str]]]:
    """Flags of the start commands of one setting, where they are not the same on every side."""
    for setting in settings:
        if not all(setting in side.commands and _CUT not in side.commands[setting] for side in sides):
            continue
        given = [_given(side.commands[setting]) for side in sides]
        for name in sorted(set().union(*given)):
            values = [table.get(name, "not given") for table in given]
            if len(set(values)) > 1:
                yield name, values


def _given(command: str) -> dict[str, str]:
    """Flag → its value as it may leave; a flag alone is given."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    found: dict[str, list[str]] = {}
    name = None
    for word in words:
        if word.startswith("-") and (flag := flag_name(word)) is not None:
            name = flag
            value = word.partition("=")[2]
            found.setdefault(name, []).extend([value] if value else [])
        elif name is not None:
            found[name].append(word)
    return {
        # Folders go before anything is cut: a report's are gone already.
        name: _FOLDERS.sub("…/", redact.clean(" ".join(words))) or "given"
        for name, words in found.items()
        if name.startswith("--") and name not in _OWN_FLAGS
    }


def _environment(sides: Sequence[Side]) -> Iterable[tuple[str, list[Any]]]:
    tables: list[Mapping[str, Any]] = [side.manifest.get("environment") or {} for side in sides]
    for name in sorted({name for table in tables for name in table}):
        yield name, [table.get(name) for table in tables]
