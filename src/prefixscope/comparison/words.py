"""What changed and what didn't, in sentences; every number in them is computed."""

from __future__ import annotations

from collections.abc import Sequence

from prefixscope.charts import times_named
from prefixscope.comparison.facts import causes, different
from prefixscope.comparison.hits import Change, Seen, middle
from prefixscope.comparison.rates import COLD, FOLLOWS, WARM, Rate
from prefixscope.comparison.unpaired import COMPARED
from prefixscope.comparison.whole import AS_STARTED, Alone, Comparison, Pair
from prefixscope.quantities import count, listing, number

_ORDINAL = {2: "second", 3: "third"}
_FIRST = {COLD: "the first token of a cold prompt", WARM: "the first token of a repeat with the same hit"}


def sentence(found: Comparison) -> str:
    """All of it in one sentence; of more than two runs in one for each that is compared with the base."""
    return " ".join(headline(pair) for pair in found.pairs)


def headline(pair: Pair) -> str:
    """``From vLLM 0.29.0 to 0.30.0 the second send of … goes from 0 to 6,336 cached tokens; latencies …``.

    Of runs that were asked for something else that comes first.
    """
    if pair.why:
        if not pair.compared:
            return f"{pair.base.letter} and {pair.other.letter} can't be compared: {pair.why}."
        return f"{pair.span} {'; '.join([*_others(pair), f'hit lengths are not compared: {pair.why}'])}."
    first = [] if pair.asked else _speeds(pair)
    return f"{pair.span} {'; '.join([*first, _hits(pair), *_latencies(pair)])}."


def unfinished(found: Comparison) -> list[tuple[str, str]]:
    """(which run, what of it is not done and what goes on with it) of each run that was not measured to its end."""
    every = zip(found.labels, found.sides, strict=True)
    return [(label, side.standing.markdown) for label, side in every if side.standing.unfinished]


def lead(pair: Pair) -> list[str]:
    """What the headline left out: how many hit lengths changed, the verdicts, speed and answers, and what to blame."""
    return [*exact(pair), *varied(pair), blame(pair)] if not pair.why or pair.compared else []


def exact(pair: Pair) -> list[str]:
    """How many hit lengths changed, and the verdicts over what both sides answered."""
    return [_counts(pair), *_verdicts(pair)] if not pair.why else []


def varied(pair: Pair) -> list[str]:
    """Speed and acceptance, unless the headline says it, and answers that differ."""
    said = bool(pair.why) or not pair.asked
    return [*([] if said else [f"{text[:1].upper()}{text[1:]}." for text in _speeds(pair)]), *_answered(pair)]


def blame(pair: Pair) -> str:
    """How many things differ: a change may be blamed on one, not on one of several. It names all that differs."""
    named, both = causes(pair.facts), f"{pair.base.letter} and {pair.other.letter}"
    follows = list(dict.fromkeys(name.partition(" (")[0] for name in different(pair.facts, "follows")))
    if not named:
        text = f"No setting that {both} tell of differs"
    elif len(named) == 1:
        text = f"Of what {both} tell of their settings, only this differs: {named[0]}"
    else:
        text = (
            f"More than one thing differs between {both} ({', '.join(named)}), so a changed result can't be blamed on "
            "one of them alone"
        )
    if follows:
        how = f"what follows from {'it' if len(named) == 1 else 'them'}" if named else "what vLLM worked out differs"
        text += f"; {'and ' if named else 'but '}{how}: {', '.join(follows)}"
    if about := different(pair.facts, "about"):
        text += f". Different too, but not a server setting: {', '.join(about)}"
    return f"{text}."


def send_words(one: Change) -> str:
    """``the second send of 6,446 tokens with MTP``."""
    cell = one.cell
    what = {
        "repeat": f"the {_ORDINAL.get(cell.index, f'{cell.index}th')} send of {number(cell.tokens)} tokens",
        "new_ending": f"a new ending of {number(cell.tokens)} tokens",
        "follow_up": f"the follow-up turn of {number(cell.tokens)} tokens",
    }.get(cell.send, f"{cell.label} of {number(cell.tokens)} tokens")
    return f"{what}{_with([one.base.config])}"


def hit_words(one: Seen) -> str:
    """A hit length, or the span of its repeats; a dash where none was reported."""
    if not one.cached:
        return "failed" if one.failed else "—"
    if not one.varies:
        return number(one.cached[0])
    return f"{number(one.cached[0])}–{number(one.cached[-1])} (n = {len(one.cached)})"


def times_words(one: Rate) -> str:
    """``0.98 times (0.91–1.06)``, or a difference in percentage points."""
    found = one.effect
    if found is None:
        return "—"
    if one.unit == "share":
        text = f"{found.value * 100:+.1f} points"
        return (
            text
            if found.low is None or found.high is None
            else f"{text} ({found.low * 100:+.1f} to {found.high * 100:+.1f})"
        )
    text = f"{times_named(found.value)} times"
    return (
        text
        if found.low is None or found.high is None
        else f"{text} ({times_named(found.low)}–{times_named(found.high)})"
    )


def judged_words(one: Rate) -> str:
    """What may be said of a quantity that varies."""
    if one.code == "can't tell":
        pairs = _pairs(one)
        if pairs < 2:
            return "can't tell: one prompt says nothing of the scatter"
        if one.needed is None:
            return "can't tell: it scatters too much"
        return f"can't tell from {pairs:,} prompts: {_would([one])}"
    return {
        "change": "a change",
        "noise": "within noise",
        "same": "the same in every pair",
        "follows": "follows the hit",
    }[one.code]


def _pairs(one: Rate) -> int:
    return one.effect.pairs if one.effect is not None else 0


def _would(rates: Sequence[Rate]) -> str:
    """``about 9 to 12 prompts would``, of those of which it is known; ``about 9 would`` of one."""
    most = sorted({max(one.needed, _pairs(one) + 1) for one in rates if one.needed is not None})
    if not most:
        return ""
    span = number(most[0]) if len(most) == 1 else f"{number(most[0])} to {number(most[-1])}"
    return f"about {span} would"


def _hits(pair: Pair) -> str:
    changed = [*pair.lower, *pair.higher]
    if not changed:
        same, untold = len(pair.hits) - len(pair.untold), len(pair.untold)
        if not same:
            return f"none of {count(untold, 'hit length')} can be told"
        return f"no hit length changes ({same:,} compared" + (f"; {untold:,} more can't be told)" if untold else ")")
    main = pair.base.verdict.config

    def weight(one: Change) -> tuple[int, bool, bool]:
        return abs(one.delta), (one.cell.send, one.cell.index) == ("repeat", 2), one.base.config == main

    most = max(changed, key=weight)
    hits = [number(middle(one.cached)) for one in (most.base, most.other)]
    text = f"{send_words(most)} goes from {hits[0]} to {hits[1]} cached tokens"
    against, way = (pair.lower, "lower") if most.code == "higher" else (pair.higher, "higher")
    if not against:
        return text
    are = "is" if len(against) == 1 else "are"
    return f"{text}; {count(len(against), 'hit length')} {are} {way}, by at most {_most(against)}"


def _most(changed: Sequence[Change]) -> str:
    return number(max(abs(one.delta) for one in changed))


def _latencies(pair: Pair) -> list[str]:
    found = [one for one in pair.rates if one.what in _FIRST]
    if not found:
        return []
    changed = [one for one in found if one.code == "change" and one.effect is not None]
    if changed:
        return [f"{_FIRST[one.what]} takes {times_words(one).replace(' times', ' times as long')}" for one in changed]
    if all(one.code in ("noise", "same") for one in found):
        return ["latencies differ within noise"]
    return [f"whether latencies changed can't be told{_enough(found)}"]


def _enough(rates: Sequence[Rate]) -> str:
    """`` (about 9 to 12 prompts would)``: from so many each of what can't be told could be."""
    text = _would([one for one in rates if one.code == "can't tell"]).removesuffix(" would")
    return f" ({text} prompts would)" if text else ""


def _counts(pair: Pair) -> str:
    same = sum(one.code == "same" for one in pair.hits)
    parts = [(len(pair.higher), "higher")] if pair.higher else []
    parts += [(len(pair.lower), f"lower (by at most {_most(pair.lower)} tokens)")] if pair.lower else []
    parts += [(same, "the same")] if same else []
    named = [f"{many:,} {'' if n else 'is ' if many == 1 else 'are '}{how}" for n, (many, how) in enumerate(parts)]
    untold = f"{count(len(pair.untold), 'hit length')} can't be told" if pair.untold else ""
    told = f"of {count(len(pair.hits), 'hit length')} {listing(named)}" if named else ""
    text = "; ".join(part for part in (told, untold) if part)
    text = f"{text[:1].upper()}{text[1:]}."
    if any(one.base.varies or one.other.varies for one in pair.hits):
        text += " Some vary between repeats of one run; a difference counts where no repeat overlaps."
    return text


def _verdicts(pair: Pair) -> list[str]:
    moved: dict[tuple[str, str], list[str]] = {}
    for one in pair.verdicts:
        if one.code != "same":
            moved.setdefault((one.base, one.other), []).append(one.config)
    if moved:
        parts = [f"from {base} to {other}{_with(who)}" for (base, other), who in moved.items()]
        return [f"The verdict goes {'; '.join(parts)}."]
    same = list(dict.fromkeys(one.base for one in pair.verdicts))
    if not same or pair.lower or pair.higher:  # a hit that changed says more than a verdict that did not
        return []
    over = count(len({tokens for one in pair.verdicts for tokens in one.lengths}), "prompt length")
    many = count(len(pair.verdicts), "configuration")
    return [
        f"Of {many} compared, over {over}, {'each' if len(pair.verdicts) > 1 else 'the'} verdict stays the same "
        f"({', '.join(same)})."
    ]


def _others(pair: Pair) -> list[str]:
    """Speed and acceptance, and how many answers are equal on either side."""
    equal = [
        f"{one.what}: {one.base[0]} of {one.base[1]} on {pair.base.letter}, {one.other[0]} of {one.other[1]} on "
        f"{pair.other.letter}"
        for one in pair.answers.equal
    ]
    return [*_speeds(pair), *equal]


def _speeds(pair: Pair) -> list[str]:
    """What became of speed and acceptance, as parts of a sentence."""
    found = [one for one in pair.rates if one.what not in (*_FIRST, FOLLOWS) and not one.by_shape]
    parts = []
    for one in found:
        if one.code == "change":
            parts.append(f"{_quantities([one])} {_verb([one], 'change')}: {times_words(one)}")
    if same := [one for one in found if one.code == "same"]:
        parts.append(f"{_quantities(same)} {_verb(same, 'stay')} the same")
    if noise := [one for one in found if one.code == "noise"]:
        parts.append(f"{_quantities(noise)} {_verb(noise, 'differ')} within noise")
    if untold := [one for one in found if one.code == "can't tell"]:
        parts.append(f"whether {_quantities(untold)} changed can't be told{_enough(untold)}")
    return parts


def _quantities(rates: Sequence[Rate]) -> str:
    """``tokens a second with MTP and no MTP``, ``acceptance and tokens per step with MTP``."""
    groups: dict[str, list[str]] = {}
    for one in rates:
        groups.setdefault(one.what, []).append(one.of)
    alike: dict[tuple[str, ...], list[str]] = {}
    for what, servers in groups.items():
        alike.setdefault(tuple(of for of in servers if of), []).append(what)
    parts = [f"{' and '.join(named)}{_with(servers)}" for servers, named in alike.items()]
    return " and ".join(parts)


def _with(names: Sequence[str]) -> str:
    """`` with MTP and no MTP``; of servers that are not ours, or of runs of one setting each, only which model."""
    plain = [name for name in names if name.startswith(("as served", AS_STARTED))]
    models = [model for name in plain if (model := name.partition(" · ")[2])]
    others = [name for name in names if name not in plain]
    return (f" of {listing(models)}" if models else "") + (f" with {listing(others)}" if others else "")


def _verb(rates: Sequence[Rate], word: str) -> str:
    """``stays`` of acceptance on one server, ``stay`` of tokens or of several things."""
    return word if len(rates) > 1 or rates[0].what.startswith("tokens") else f"{word}s"


def _answered(pair: Pair) -> list[str]:
    across = pair.answers.across
    return [across.sentence] if across is not None and across.code == "arms" else []


def alone_words(one: Alone) -> str:
    """``only in A`` of two runs or where just one has it, ``in A and B, not in C`` else."""
    if len(one.letters) == 1:
        return f"only in {one.letters[0]}"
    return f"in {listing(one.letters)}, not in {listing(one.without)}"


def unpaired_words(found: Comparison) -> list[tuple[str, str, str, str]]:
    """(who, configuration, what, how many or why) of answers without their like, of all pairs, each once."""
    rows: dict[tuple[str, str, str, str], None] = {}
    for pair in found.pairs:
        for one in pair.unpaired:
            who = "not compared"
            if one.without:
                alone = len(found.sides) == 2
                who = f"only in {one.have[0]}" if alone else f"in {one.have[0]}, not in {one.without[0]}"
            unit = "comparison" if one.what == COMPARED else "answer"
            rows[who, one.config, one.what, one.why or count(one.many, unit)] = None
    return list(rows)


def lengths_words(lengths: Sequence[int]) -> str:
    """``100, 1,000 and 6,446 tokens``."""
    named = [number(one) for one in lengths]
    return f"{', '.join(named[:-1])} and {named[-1]} tokens" if len(named) > 1 else f"{named[0]} tokens"


def chief(pair: Pair, most: int) -> list[tuple[str, str, str]]:
    """The hit lengths that changed most: (which send, on the base, on the other)."""
    changed = sorted([*pair.lower, *pair.higher], key=lambda one: -abs(one.delta))[:most]
    return [(send_words(one), number(middle(one.base.cached)), number(middle(one.other.cached))) for one in changed]
