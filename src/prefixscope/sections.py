"""The report's sections: what to look for, a figure, a table, how to decide. Every number in them is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from prefixscope import charts, redact
from prefixscope.material import Material
from prefixscope.verdict import count, number, wilson


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart with the words around it; ``chart`` is an Altair chart."""

    id: str
    chart: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Text cells under text headings; ``numeric`` names the columns that align right."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One question of the report.

    ``findings`` are (about what, what was found); ``missing`` says what would fill the section, ``command`` how.
    """

    id: str
    title: str
    before: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    findings: tuple[tuple[str, str], ...] = ()
    after: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    missing: str = ""
    command: str = ""


def sections(material: Material, *, include_text: bool = False) -> list[Section]:
    """All sections after the verdict, in reading order."""
    made = [hit_lengths(material), first_token(material), block_trace(material), sweep(material), cost(material)]
    made += [equality(material, include_text=include_text), time_spent(material), warnings(material)]
    return made


def configurations(material: Material) -> list[str]:
    """The configurations that figures compare: those of the baseline, without the swept ones."""
    base = material.sent[material.sent["stage"] != "sweep"]
    found = set(base["config"].dropna())
    return [name for name in material.hits["config"].drop_duplicates() if name in found][:8]


def headline_figure(material: Material) -> Figure | None:
    """The one figure that shows the verdict: without the drafter, with it, with the remedy."""
    second = material.hits[(material.hits["send"] == "repeat") & (material.hits["index"] == 2)]
    if not len(second):
        return None
    plain = second.loc[~second["drafter"].fillna(True) & ~second["as_served"].fillna(False), "config"].head(1).tolist()
    names = [*plain, material.verdict.config, material.verdict.remedy_config]
    chart = charts.hits_by_send(material.hits, configs=[name for name in dict.fromkeys(names) if name])
    return None if chart is None else Figure(id="verdict", chart=chart)


def hit_lengths(material: Material) -> Section:
    table = material.hits
    title, section_id = "Hit lengths", "hits"
    if not len(table):
        return _empty(material, section_id, title, "No request has been measured yet.", "baseline")
    names = configurations(material)
    figure = charts.hits_by_length(table, configs=names)
    doubtful = material.sent["metrics_agree"].dropna()
    after = [
        "A point on the dashed line reuses every token. One or two scheduler blocks below it is as good as it gets: "
        "vLLM rounds hits down to whole blocks and, with speculative decoding, gives up the last one.",
        "A point on the floor is a prefix that is computed again in full. If send 2 is on the floor and send 3 is not, "
        "only the third visitor of a prompt profits from the cache.",
    ]
    if len(doubtful):
        wrong = int((~doubtful).sum())
        after.append(
            f"The server's own counters (/metrics) gave the same hit length in {len(doubtful) - wrong:,} of "
            f"{len(doubtful):,} requests"
            + (f"; the {count(wrong, 'other')} should be read with care." if wrong else ".")
        )
    return Section(
        id=section_id,
        title=title,
        before=(
            "Each prompt was sent under a salt of its own, so its first send is provably cold. Look for the prompt "
            "length from which the second send stops following the dashed line.",
        ),
        figures=() if figure is None else (Figure(id=section_id, chart=figure),),
        after=tuple(after),
        tables=(_hit_table(table[table["config"].isin(names)] if names else table),),
    )


def _hit_table(table: pd.DataFrame) -> Table:
    sends = ["send 1 (cold)", "send 2", "send 3", "different text", "new ending", "follow-up turn"]
    present = [name for name in sends if name in set(table["send_label"])]
    rows = []
    for (config, tokens), part in table.groupby(["config", "tokens"], sort=False, dropna=False):
        cells = []
        for name in present:
            cell = part[part["send_label"] == name]
            cells.append(_hit_cell(cell.iloc[0]) if len(cell) else "")
        second = part[part["send_label"] == "send 2"]
        short = number(second.iloc[0]["short_tokens"]) if len(second) else "—"
        found = second.iloc[0]["verdict"] if len(second) else pd.NA
        rows.append((str(config), number(tokens), *cells, short, "—" if pd.isna(found) else str(found)))
    columns = ("configuration", "prompt tokens", *present, "short at send 2", "verdict")
    return Table(
        caption="Cached tokens by send. “Short” is prompt tokens minus cached tokens; a dash was not reported.",
        columns=columns,
        rows=tuple(rows),
        numeric=frozenset(columns[1:-1]),
    )


def _hit_cell(row: Any) -> str:
    if row["failed"] and not row["count"]:
        return "failed"
    if pd.isna(row["cached_tokens"]):
        return "—"
    if row["cached_min"] != row["cached_max"]:
        span = f"{number(row['cached_min'])}–{number(row['cached_max'])}"
        return f"{number(row['cached_tokens'])} ({span}, n = {row['count']})"
    return number(row["cached_tokens"])


def first_token(material: Material) -> Section:
    title, section_id = "Time to first token", "latency"
    table = material.latency
    if not len(table):
        return _empty(material, section_id, title, "No latency has been measured yet.", "baseline")
    names = configurations(material)
    chart = charts.first_token(table, configs=names)
    rows = tuple(
        (
            str(row.config),
            number(row.tokens),
            str(row.send_label),
            number(row.cached_tokens),
            *map(_ms, (row.median_ms, row.min_ms, row.max_ms)),
            number(row.rows),
        )
        for row in table[table["config"].isin(names)].rename(columns={"count": "rows"}).itertuples()
    )
    columns = (
        "configuration",
        "prompt tokens",
        "send",
        "cached tokens",
        "median, ms",
        "lowest, ms",
        "highest, ms",
        "sends",
    )
    return Section(
        id=section_id,
        title=title,
        before=(
            "What a hit is worth to the person who waits. Compare a configuration's coloured points with its grey one.",
        ),
        figures=() if chart is None else (Figure(id=section_id, chart=chart),),
        after=(
            "Believe differences that are larger than the range of equal sends. The first request of each server and "
            "adapter pays for warming up; it was sent and discarded.",
        ),
        tables=(
            Table(
                caption="Time to first token, median and range.",
                columns=columns,
                rows=rows,
                numeric=frozenset(columns[1:2] + columns[3:]),
            ),
        ),
    )


def block_trace(material: Material) -> Section:
    title, section_id = "Block trace", "blocks"
    chart = charts.block_ruler(material.blocks)
    if chart is None:
        what = (
            "The tracer ran, but none of its lookups belongs to a repeated send."
            if material.traced
            else "No engine was traced in this run."
        )
        return _empty(material, section_id, title, what, "trace")
    rows = tuple(
        (
            str(row.send_label),
            str(row.gid),
            str(row.group).replace(" · ", ", "),
            str(row.state),
            charts.block_range(row.start, row.stop),
            number(row.start_token),
            number(row.stop_token),
        )
        for row in material.blocks.itertuples()
        if not pd.isna(row.start)
    )
    columns = ("lookup", "group", "kind", "state", "blocks", "from token", "to token")
    causes = tuple(
        (label, " ".join(filter(None, map(_sentence, (cause.sentence, cause.remedy, cause.price)))))
        for label, cause in material.causes
    )
    return Section(
        id=section_id,
        title=title,
        before=(
            "A request hits only as far as every KV cache group can back it. For each group the ruler shows what was "
            "stored when the lookup came and what it needed. Look for an outline that is not filled from end to end.",
        ),
        figures=(Figure(id=section_id, chart=chart),),
        findings=causes,
        after=(
            "One missing block is enough: a sliding-window group backs a hit only with its whole window, without gaps.",
        ),
        tables=(
            Table(
                caption="Block ranges per lookup and group; block numbers are the group's own.",
                columns=columns,
                rows=rows,
                numeric=frozenset({"group", "from token", "to token"}),
            ),
        ),
    )


def sweep(material: Material) -> Section:
    title, section_id = "Retention sweep", "sweep"
    table = material.sweep
    if not len(table):
        return _empty(material, section_id, title, "No retention interval has been swept yet.", "sweep")
    chart = charts.hit_against_interval(table)
    rows = tuple(
        (
            str(row.interval),
            number(row.tokens),
            *map(number, (row.hit_2, row.hit_3, row.short_2)),
            _ms(row.first_2_ms),
            number(row.blocks),
            _mib(row.bytes),
            "failed" if row.failed else "",
        )
        for row in table.itertuples()
    )
    columns = (
        "interval",
        "prompt tokens",
        "hit, send 2",
        "hit, send 3",
        "short at send 2",
        "first token, send 2, ms",
        "blocks kept",
        "MiB kept",
        "note",
    )
    return Section(
        id=section_id,
        title=title,
        before=(
            "The server was restarted for each --prefix-cache-retention-interval. Look for the intervals at which the "
            "lines of your own prompt lengths leave the floor.",
        ),
        figures=() if chart is None else (Figure(id=section_id, chart=chart),),
        after=(
            "Choose among the intervals that lift every length you serve. A coarse interval can lift long prompts and "
            "leave short ones on the floor; the next section says what each one keeps.",
        ),
        tables=(
            Table(
                caption="One row per interval and prompt length.",
                columns=columns,
                rows=rows,
                numeric=frozenset(columns[1:-1]),
            ),
        ),
    )


def cost(material: Material) -> Section:
    title, section_id = "What it costs", "cost"
    chart = charts.cost_against_shortfall(material.sweep)
    if chart is None:
        return _empty(material, section_id, title, "Blocks kept are counted by the sweep, on a traced engine.", "sweep")
    stored = material.kept
    tokens = stored["tokens"].max()
    kept = stored[stored["tokens"] == tokens].drop_duplicates(["series", "gid"])
    named = kept["interval"].where(kept["interval"] != "default", kept["resolved"].fillna("release's") + " (default)")
    kinds = kept.assign(interval=named).groupby(["interval", "interval_order", "group_kind", "block_size"], sort=False)
    rows = tuple(
        (
            str(interval),
            str(kind),
            number(len(part)),
            number(size),
            number(part["blocks"].sum()),
            _mib(part["bytes"].sum() if part["bytes"].notna().all() else None),
        )
        for (interval, _, kind, size), part in sorted(kinds, key=lambda item: item[0][1])
    )
    columns = ("interval", "group kind", "groups", "block, tokens", "blocks kept", "MiB kept")
    return Section(
        id=section_id,
        title=title,
        before=(
            f"What one prompt of {number(tokens)} tokens leaves in the cache, against what its second send still "
            "has to compute.",
        ),
        figures=(Figure(id=section_id, chart=chart),),
        after=(
            "Kept blocks are evictable: they take nothing from running requests. But on a small cache they push out "
            "other prompts, and an interval that fixes the resend can lower the hit rate of mixed traffic. This figure "
            "is unpressured: one prompt in an otherwise idle cache.",
        ),
        tables=(
            Table(
                caption=f"Blocks kept after one send of {number(tokens)} tokens, by kind of group.",
                columns=columns,
                rows=rows,
                numeric=frozenset(columns[2:]),
            ),
        ),
    )


def equality(material: Material, *, include_text: bool) -> Section:
    title, section_id = "Output equality", "equality"
    table = material.comparisons
    if not len(table):
        return _empty(material, section_id, title, "No answers have been compared yet.", "equality")
    after = []
    for pair, what in (
        ("cold-warm", "warm answers equal the cold ones"),
        ("cold-control", "control answers equal the cold ones"),
    ):
        part = table[table["pair"] == pair]
        void = int((part["class"] == "void").sum())
        judged = part[part["identical"].notna()]
        if not len(judged):
            after.append(
                f"No {what.split()[0]} answer could be compared."
                if not void
                else f"All {count(void, 'comparison')} are void: nothing was reused."
            )
            continue
        equal = int(judged["identical"].sum())
        low, high = wilson(equal, len(judged))
        sentence = f"{equal} of {len(judged)} {what}; the 95% interval of that share is {low:.0%} to {high:.0%}"
        after.append(sentence + (f"; {void} more are void, since nothing was reused." if void else "."))
    control = table[table["pair"] == "cold-control"]
    after.append(
        "Blame the cache only for differences that the control does not show as well: a model that answers "
        "differently when asked twice without the cache will do so with it."
        if len(control)
        else "Without a control no difference can be blamed on the cache."
    )
    different = table[table["identical"].eq(False).fillna(False) | (table["class"] == "void")]
    rows = tuple(
        (
            str(row.document),
            str(row.model),
            str(row.pair).replace("-", " / "),
            str(row.kind),
            number(row.first_difference),
            "—" if pd.isna(row.margin) else f"{row.margin:.4f}",
            number(row.cached_tokens),
            str(row.by),
        )
        for row in different.assign(kind=different["class"]).itertuples()
    )
    columns = (
        "document",
        "served name",
        "pair",
        "what differs",
        "at position",
        "margin, nats",
        "cached tokens",
        "compared by",
    )
    tables = [
        Table(
            caption="Every pair that is not identical." if rows else "All pairs are identical; nothing to list.",
            columns=columns,
            rows=rows,
            numeric=frozenset(columns[4:7]),
        )
    ]
    if include_text:
        answered = material.answers
        said = tuple(
            (str(row.document), str(row.model), str(row.arm), redact.clean("" if pd.isna(row.text) else row.text))
            for row in answered.itertuples()
        )
        tables.append(Table(caption="The answers.", columns=("document", "served name", "send", "answer"), rows=said))
    figure = charts.equality_matrix(table)
    return Section(
        id=section_id,
        title=title,
        before=(
            "Does a cached prefix change what the model says? Greedy answers to the same documents, without and with a "
            "hit. Look for cells that do not say “same”.",
        ),
        figures=() if figure is None else (Figure(id=section_id, chart=figure),),
        after=tuple(after),
        tables=tuple(tables),
    )


def time_spent(material: Material) -> Section:
    title, section_id = "Where the time went", "time"
    chart = charts.time_spent(material.timeline)
    if chart is None:
        return _empty(material, section_id, title, "No stage has run yet.", None)
    totals: dict[tuple[str, str], list[float]] = {}
    for item in material.run.get("time", []):
        if isinstance(item, Mapping) and isinstance(item.get("seconds"), (int, float)):
            key = redact.clean(item.get("stage", "")), redact.clean(item.get("what", ""))
            totals.setdefault(key, []).append(float(item["seconds"]))
    rows = tuple((*key, number(len(spent)), f"{sum(spent):,.1f}") for key, spent in totals.items())
    return Section(
        id=section_id,
        title=title,
        before=(
            "What each stage took, and when each server was starting or serving. A server may start behind other work.",
        ),
        figures=(Figure(id=section_id, chart=chart),),
        tables=(
            Table(
                caption="Seconds by stage.",
                columns=("stage", "what", "times", "seconds"),
                rows=rows,
                numeric=frozenset({"times", "seconds"}),
            ),
        )
        if rows
        else (),
    )


def warnings(material: Material) -> Section:
    found = [item for item in material.run.get("warnings", []) if isinstance(item, Mapping)]
    rows = [tuple(redact.clean(item.get(key) or "") for key in ("stage", "code", "detail", "remedy")) for item in found]
    version = material.run.get("schema_version", 1)
    if version != 1:
        rows.append(
            (
                "",
                "other-schema",
                f"The run's schema is {redact.clean(version)}, this report reads 1.",
                "pip install --upgrade prefixscope",
            )
        )
    rows += [
        ("", "unreadable-rows", problem, "nothing to do: everything else was read") for problem in material.problems
    ]
    failed = material.sent[material.sent["status"] == "failed"]
    for (stage, error), part in failed.groupby(["stage", "error"], dropna=False, sort=False):
        rows.append(
            (
                str(stage),
                "failed-requests",
                f"{count(len(part), 'request')} failed: {redact.clean(error)}",
                command(str(stage)),
            )
        )
    for name, stage in (material.run.get("stages") or {}).items():
        if isinstance(stage, Mapping) and stage.get("status") in ("failed", "partial", "interrupted"):
            why = redact.clean(stage.get("error") or stage.get("note") or "no reason was recorded")
            rows.append((redact.clean(name), f"stage-{stage['status']}", why, command(redact.clean(name))))
    columns = ("stage", "code", "what happened", "what to do")
    if not rows:
        return Section(id="warnings", title="Warnings", before=("Nothing doubtful was seen.",))
    return Section(
        id="warnings",
        title="Warnings",
        before=("What makes a number above less than certain, and what to do about it.",),
        tables=(Table(caption=f"{count(len(rows), 'warning')}.", columns=columns, rows=tuple(dict.fromkeys(rows))),),
    )


def command(stage: str | None) -> str:
    """The command that fills a stage of this run; RUN stands for its directory."""
    return "prefixscope run -o RUN --resume" + (f" --only {stage}" if stage else "")


def _empty(material: Material, section_id: str, title: str, missing: str, stage: str | None) -> Section:
    """A section without data: why, and the command that fills it."""
    entry = (material.run.get("stages") or {}).get(stage)
    entry = entry if isinstance(entry, Mapping) else {}
    why = redact.clean(entry.get("note") or entry.get("error") or "").strip()
    if why:
        missing = f"{missing} {why[:1].upper()}{_sentence(why)[1:]}"
    fill = command(stage)
    if entry.get("status") == "skipped":
        # The stage can't run on this target at all; its warning says on which it can.
        warned = [
            item
            for item in material.run.get("warnings", [])
            if isinstance(item, Mapping) and item.get("stage") == stage
        ]
        fill = next((redact.clean(item["remedy"]) for item in warned if item.get("remedy")), fill)
    return Section(id=section_id, title=title, missing=missing, command=fill)


def _sentence(value: Any) -> str:
    text = redact.clean(value).strip() if value else ""
    return text if not text or text[-1] in ".!?" else text + "."


def _ms(value: Any) -> str:
    return "—" if pd.isna(value) else f"{value:,.0f}"


def _mib(value: Any) -> str:
    return "—" if value is None or pd.isna(value) else f"{value / 2**20:,.1f}"
