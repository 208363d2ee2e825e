"""A comparison in reading order: settings, then results; as one HTML file that opens offline."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prefixscope import charts, frames, page, redact
from prefixscope.comparison import tables
from prefixscope.comparison.hits import Change, middle
from prefixscope.comparison.retention import Interval, intervals
from prefixscope.comparison.whole import CANNOT_TELL, SAME, Comparison, Pair, to_json
from prefixscope.comparison.words import blame, exact, headline, judged_words, sentence, unfinished, varied
from prefixscope.display import themed
from prefixscope.quantities import count, number
from prefixscope.sections import Figure, Section, Table
from prefixscope.sections.section import figures

MOST_PANELS = 4


def render_comparison(found: Comparison, target: Path) -> Path:
    """Write the page and give its path.

    Raises
    ------
    ReportError
        where it can't be written.
    """
    made, top = sections(found), headline_figure(found)
    every = [*([top] if top is not None else []), *(one for section in made for one in section.figures)]
    drawn = {one.id: page.Drawn(one.id, themed(one.chart)) for one in every}
    text = page.render(
        "comparison.html.j2",
        drawn,
        title=sentence(found),
        code=code(found),
        chip={"worse": "none", "better and worse": "short", "better": "reuses"}.get(code(found), "inconclusive"),
        headings=[headline(pair) for pair in found.pairs],
        leads=[" ".join(exact(pair)) for pair in found.pairs],
        blames=[blame(pair) for pair in found.pairs if not pair.why or pair.compared],
        varied=[text for pair in found.pairs if (text := _of(found, pair, " ".join(varied(pair))))],
        labels=found.labels,
        unfinished=unfinished(found),
        headline=drawn.get("verdict"),
        sections=made,
        downloads=list(_downloads(found)),
    )
    return page.write(text, target)


def _of(found: Comparison, pair: Pair, text: str) -> str:
    """The text, with the pair that it is about where there are several."""
    return f"{pair.other.letter} against {pair.base.letter}: {text}" if text and len(found.pairs) > 1 else text


def code(found: Comparison) -> str:
    """What all pairs together come to."""
    codes = {pair.code for pair in found.pairs}
    known = codes - {SAME, CANNOT_TELL}
    if len(known) == 1:
        return known.pop()
    return "better and worse" if known else CANNOT_TELL if CANNOT_TELL in codes else SAME


def sections(found: Comparison) -> list[Section]:
    """Who is who, settings, results, what was not compared, doubts; sections without content are left out."""
    made = [_runs(found), _settings(found), _hits(found), _retention(found), _rates(found), _answers(found)]
    if (table := tables.alone(found)) is not None:
        text = "Only what was asked alike is compared. This was not asked alike of every run:"
        made.append(Section(id="alone", title="What not every run has", before=(text,), tables=(table,)))
    if (table := tables.doubts(found)) is not None:
        made.append(Section(id="doubts", title="Doubts", tables=(table,)))
    return [one for one in made if one is not None]


def headline_figure(found: Comparison) -> Figure | None:
    """The sends that changed most, with a bar for each run; where none did, the longest second sends."""
    every: dict[Any, list[Change]] = {}
    for pair in found.pairs:
        for one in pair.hits:
            if one.base.cached or one.other.cached:
                every.setdefault(one.cell, []).append(one)

    def weight(cell: Any) -> tuple[int, bool, int]:
        return max(abs(one.delta) for one in every[cell]), (cell.send, cell.index) == ("repeat", 2), cell.tokens

    chosen = sorted(every, key=weight, reverse=True)[:MOST_PANELS]
    moved = [cell for cell in chosen if weight(cell)[0]]
    rows = []
    for cell in moved or chosen:
        first = every[cell][0]
        # What was sent stays in one line of the panel's name.
        sent = f"{number(cell.tokens)} tokens, {cell.label}".replace(" ", "\N{NO-BREAK SPACE}")
        panel = f"{first.base.config}, {sent}"
        full = max(first.base.prompt_tokens, default=cell.tokens)
        by_letter = {
            one_pair.other.letter: one for one_pair in found.pairs for one in one_pair.hits if one.cell == cell
        }
        for side, label in zip(found.sides, found.labels, strict=True):
            seen = (
                first.base
                if side is found.sides[0]
                else by_letter[side.letter].other
                if side.letter in by_letter
                else None
            )
            if seen is not None:
                hit = middle(seen.cached) if seen.cached else None
                rows.append({"panel": panel, "run": label, "hit": hit, "full": full})
    if not rows:
        return None
    changed = sum(any(one.code in ("lower", "higher") for one in of) for of in every.values())
    title = (
        f"{count(changed, 'hit length')} of {number(len(every))} changed"
        if changed
        else f"None of {count(len(every), 'hit length')} changed"
    )
    if changed > len(moved) and moved:
        title += f"; the {len(moved)} that changed most"
    chart = charts.compared_hits(frames.compared_hits(rows), title=title)
    return None if chart is None else Figure(id="verdict", chart=chart)


def _runs(found: Comparison) -> Section:
    return Section(id="runs", title="The runs", tables=(tables.runs(found),))


def _settings(found: Comparison) -> Section:
    table, same = tables.settings(found), tables.same(found.facts)
    before = () if table is not None else ("No setting differs, of all that the runs tell.",)
    return Section(
        id="settings",
        title="What differs in settings",
        before=before,
        tables=() if table is None else (table,),
        after=same,
    )


def _hits(found: Comparison) -> Section | None:
    made = tables.hits(found)
    if not made:
        return None
    judged = [one for pair in found.pairs if (one := tables.verdicts(pair)) is not None]
    return Section(
        id="hits",
        title="Hit lengths",
        before=(
            "A hit length is a count of tokens that the scheduler's rules give: sent again it is the same, so any "
            "difference is real and needs no statistics. Where repeats of one run vary (other traffic, evictions), a "
            "difference counts only if no repeat of one run overlaps with those of the other.",
        ),
        tables=(*judged, *made),
    )


def _retention(found: Comparison) -> Section | None:
    rows = intervals(found.sides)
    if not rows:
        return None
    data = [
        {"tokens": one.tokens, "interval": one.interval, "run": label, "hit": hit}
        for one in rows
        for label, hit in zip(found.labels, one.hits, strict=True)
        if hit is not None
    ]
    chart = charts.compared_sweep(frames.compared_sweep(data), title=_swept(rows))
    alone = (
        "" if rows[0].measured else "Nothing here was measured: these are predictions by each release's own scheduler. "
    )
    return Section(
        id="sweep",
        title="Retention intervals",
        before=(
            f"{alone}Hits and kept blocks are exact counts. More blocks kept is a price, not a fault: they can be "
            "evicted.",
        ),
        figures=figures("sweep", chart),
        tables=(tables.retention(found, rows),),
    )


def _swept(rows: Iterable[Interval]) -> str:
    every = list(rows)
    apart = [one for one in every if len({hit for hit in one.hits if hit is not None}) > 1]
    kept = [one for one in every if len({n for n in one.blocks if n is not None}) > 1]
    if not apart:
        text = f"The second send hits the same at all {len(every)} intervals and lengths"
    else:
        names = list(dict.fromkeys(one.interval for one in apart))
        text = f"The second send hits another length at interval {', '.join(names[:4])}{' …' if len(names) > 4 else ''}"
    return f"{text}; {f'blocks kept differ at {len(kept)}' if kept else 'blocks kept are the same'}"


def _rates(found: Comparison) -> Section | None:
    made: list[Table] = []
    rows = []
    for pair, label in zip(found.pairs, found.labels[1:], strict=True):
        made += tables.rates(pair)
        for one in pair.rates:
            if one.unit != "share" and one.effect is not None and not one.by_shape:
                words = judged_words(one).partition(":")[0].partition(" from")[0].removeprefix("a ")
                rows.append(
                    {
                        "what": one.name, "run": f"{label} against {found.labels[0]}", "times": one.effect.value,
                        "low": one.effect.low, "high": one.effect.high, "code": words,
                    }
                )  # fmt: skip
    if not made:
        return None
    chart = charts.compared_rates(frames.compared_rates(rows), title=_rated(found))
    return Section(
        id="rates",
        title="Times and rates: noise or change?",
        before=(
            "These vary from request to request. Each prompt's value is set against the same prompt's on the other "
            "run; the interval is Student's t over those pairs (ratios on logarithms), and the p of all that was "
            "looked at together is corrected (Holm). “Within noise” is said only where the interval leaves out a "
            "change of a quarter, or of 5 percentage points; else it can't be told.",
        ),
        figures=figures("rates", chart),
        after=(
            "The runs were not interleaved: an interval knows the scatter between requests, and not a machine that was "
            "busier on one day. To be surer, ask both servers in turns: "
            "`prefixscope run --url FIRST --only speculation -p speculation.other=SECOND`.",
        ),
        tables=tuple(made),
    )


def _rated(found: Comparison) -> str:
    every = [one for pair in found.pairs for one in pair.rates if one.unit != "share" and not one.by_shape]
    every = [one for one in every if one.code != "follows"]
    changed = [one.name for one in every if one.code == "change"]
    if changed:
        return f"Beyond noise: {', '.join(dict.fromkeys(changed))}"
    if every and all(one.code in ("noise", "same") for one in every):
        return "Times and rates differ within noise"
    return "No change of a time or a rate can be told from noise"


def _answers(found: Comparison) -> Section | None:
    made = [one for pair in found.pairs if (one := tables.equality(pair)) is not None]
    said = [
        (f"{p.base.letter} and {p.other.letter}", p.answers.across.sentence) for p in found.pairs if p.answers.across
    ]
    if not made and not said:
        return None
    return Section(
        id="equality",
        title="Answers",
        before=("Does a cached prefix change what the model says, and do the runs answer alike?",),
        findings=tuple(said),
        tables=tuple(made),
        after=()
        if said
        else ("Whether the runs answer alike is only known from run directories: reports leave answers behind.",),
    )


def _downloads(found: Comparison) -> Iterable[page.Download]:
    value = to_json(found, sentence(found))
    for run in value["runs"]:
        del run["run"]  # what a run is called here may be a path
    yield page.download(
        "comparison.json", "every number above", json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True)
    )
    for side in found.sides:
        shared = (redact.row(row) for row in side.rows)
        lines = "".join(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in shared)
        if lines:
            yield page.download(
                f"{side.letter}-rows.jsonl", f"the raw rows of {side.letter} ({number(len(side.rows))})", lines
            )
        manifest = json.dumps(side.manifest, indent=1, ensure_ascii=False, sort_keys=True)
        yield page.download(
            f"{side.letter}-run.json", f"the manifest of {side.letter}, shortened for sharing", manifest
        )
