"""One function per figure: summary frame → Altair chart whose title says what it shows.

Every function returns None where its frame holds nothing to draw; the caller says what would fill the gap.
Charts carry no colours of ink or paper: ``theme.vega_config`` gives them, light or dark.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt
import pandas as pd

from prefixscope.theme import CLASS_COLOURS, GREY, SEND_COLOURS, SERIES, VERMILION
from prefixscope.verdict import count, number

WIDTH = 620
"""Plot width in px where nobody asks for another; a report fits charts to its page."""


def hits_by_send(table: pd.DataFrame, *, configs: Sequence[str] | None = None) -> Any:
    """Hit length of the first three sends of the longest prompt, a block of bars per configuration.

    ``table`` is ``frames.hits``; ``configs`` picks configurations and their order.
    """
    rows = table[table["send"].isin(["cold", "repeat"]) & (table["index"] <= 3) & table["cached_tokens"].notna()]
    rows, names = _pick(rows, configs)
    if not len(rows):
        return None
    tokens = rows["tokens"].max()
    rows = rows[rows["tokens"] == tokens]
    names = [name for name in names if name in set(rows["config"])]
    full = int(rows["prompt_tokens"].max())
    data = [
        {
            "config": row.config,
            "send": row.send_label,
            "hit": int(row.cached_tokens),
            "full": full,
            "text": number(row.cached_tokens) if row.cached_tokens or row.send == "cold" else "0 – nothing reused",
            "role": "inside"
            if row.cached_tokens > full * 0.45
            else ("miss" if not row.cached_tokens and row.send != "cold" else "outside"),
        }
        for row in rows.itertuples()
    ]
    base = alt.Chart().encode(
        y=alt.Y("send:N", sort=list(SEND_COLOURS), title=None),
        x=alt.X("hit:Q", title="cached tokens", axis=_count_axis(), scale=alt.Scale(domain=[0, full], nice=False)),
    )
    bars = base.mark_bar(height={"band": 0.74}, cornerRadiusEnd=2).encode(color=_colour("send", SEND_COLOURS))
    inside = base.transform_filter("datum.role === 'inside'").mark_text(
        align="right", dx=-8, color="#fff", fontWeight=600
    )
    outside = base.transform_filter("datum.role === 'outside'").mark_text(align="left", dx=6)
    miss = base.transform_filter("datum.role === 'miss'").mark_text(align="left", dx=6, color=VERMILION, fontWeight=600)
    limit = alt.Chart().mark_rule(strokeDash=[4, 3]).encode(x="full:Q")
    layers = alt.layer(bars, limit, *(mark.encode(text="text:N") for mark in (inside, outside, miss)))
    chart = layers.properties(width=WIDTH, height=26 * rows["send_label"].nunique())
    faceted = chart.facet(facet=_facet("config", names), columns=1, data=_inline(data), spacing=14)
    second = rows[rows["index"] == 2]
    missed = _unique(second.loc[second["cached_tokens"] == 0, "setting"])
    if missed:
        title = f"Send 2 of the same {number(full)} tokens reuses nothing with {_listing(missed)}"
    elif len(second):
        title = f"Send 2 of the same {number(full)} tokens reuses {_span(second['cached_tokens'])} of them"
    else:
        title = f"Hits of a {number(full)}-token prompt"
    return faceted.properties(title=_title(title, "The dashed line is the whole prompt."))


def hits_by_length(table: pd.DataFrame, *, configs: Sequence[str] | None = None) -> Any:
    """Hit length of sends 2 and 3 against prompt length, one panel per configuration, with the line of a full hit."""
    rows = table[(table["send"] == "repeat") & table["index"].isin([2, 3]) & table["cached_tokens"].notna()]
    rows, names = _pick(rows, configs)
    lengths = rows.groupby("config")["tokens"].nunique()
    names = [name for name in names if lengths.get(name, 0) > 1]
    rows = rows[rows["config"].isin(names)]
    if not len(rows):
        return None
    top = int(rows["prompt_tokens"].max())
    data: list[dict[str, Any]] = []
    for name in names:
        part = rows[rows["config"] == name].sort_values(["index", "tokens"])
        ends = part.groupby("index")["cached_tokens"].last()
        same = len(ends) == 2 and abs(ends.iloc[0] - ends.iloc[1]) < top * 0.06
        for row in part.itertuples():
            last = row.tokens == part["tokens"].max()
            text = ("sends 2 and 3" if same else row.send_label) if last and not (same and row.index == 3) else ""
            data.append(
                {
                    "config": name,
                    "send": row.send_label,
                    "length": int(row.prompt_tokens),
                    "hit": int(row.cached_tokens),
                    "text": text,
                    "below": row.cached_tokens > top * 0.3,
                }
            )
        data += [{"config": name, "send": "full", "length": end, "hit": end, "text": ""} for end in (0, top)]
    base = alt.Chart().encode(
        x=alt.X("length:Q", title="prompt tokens", axis=_count_axis(4), scale=alt.Scale(domain=[0, top], nice=False)),
        y=alt.Y("hit:Q", title="cached tokens", axis=_count_axis(4), scale=alt.Scale(domain=[0, top], nice=False)),
    )
    full = base.transform_filter("datum.send === 'full'").mark_line(strokeDash=[4, 3], strokeWidth=1, color=GREY)
    measured = base.transform_filter("datum.send !== 'full'").encode(color=_colour("send", SEND_COLOURS))
    third = measured.transform_filter("datum.send === 'send 3'")
    second = measured.transform_filter("datum.send === 'send 2'")
    labels = measured.encode(text="text:N")
    chart = alt.layer(
        full,
        third.mark_line(strokeWidth=1.5),
        second.mark_line(strokeWidth=1.5),
        third.mark_point(filled=False, size=110, strokeWidth=2),
        second.mark_point(filled=True, size=36),
        labels.transform_filter("datum.below").mark_text(align="right", dx=-14, dy=-3, fontWeight=600),
        labels.transform_filter("!datum.below").mark_text(align="right", dx=-2, dy=-14, fontWeight=600),
    ).properties(width=260, height=190)
    faceted = chart.facet(facet=_facet("config", names), columns=2, data=_inline(data), spacing=24)
    broken = rows[(rows["index"] == 2) & (rows["verdict"] == "none")]
    if len(broken):
        first = int(broken["prompt_tokens"].min())
        who = _listing(_unique(broken["setting"]))
        title = f"From {number(first)} tokens on, the second send misses with {who}"
    else:
        title = "Hits follow the prompt's length in every configuration"
    return faceted.properties(title=_title(title, "Dashed: every token reused. Filled point: send 2; ring: send 3."))


def first_token(table: pd.DataFrame, *, configs: Sequence[str] | None = None) -> Any:
    """Time to first token of the longest prompt, cold and repeated: median, range, count."""
    rows = table[~table["send_label"].isin(["different text"]) & (table["index"] <= 3)]
    rows, names = _pick(rows, configs)
    if not len(rows):
        return None
    tokens = rows["tokens"].max()
    rows = rows[rows["tokens"] == tokens]
    names = [name for name in names if name in set(rows["config"])]
    data = [
        {
            "config": row.config,
            "send": row.send_label,
            "median": round(row.median_ms, 1),
            "low": round(row.min_ms, 1),
            "high": round(row.max_ms, 1),
            "text": f"{number(round(row.median_ms))} ms" + (f" (n = {row.count})" if row.count > 1 else ""),
        }
        for row in rows.rename(columns={"count": "rows"}).assign(count=rows["count"]).itertuples()
    ]
    top = max(item["high"] for item in data)
    for item in data:
        item["left"] = item["high"] > top * 0.6
    base = alt.Chart().encode(
        y=alt.Y("send:N", sort=list(SEND_COLOURS), title=None),
        x=alt.X(
            "median:Q", title="time to first token, ms", axis=_count_axis(), scale=alt.Scale(domain=[0, top * 1.05])
        ),
    )
    labels = base.encode(text="text:N")
    chart = alt.layer(
        base.mark_rule(strokeWidth=3, opacity=0.45).encode(x="low:Q", x2="high:Q", color=_colour("send", SEND_COLOURS)),
        base.mark_point(filled=True, size=70).encode(color=_colour("send", SEND_COLOURS)),
        labels.transform_filter("datum.left").mark_text(align="right", dx=-9),
        labels.transform_filter("!datum.left").mark_text(align="left", dx=9),
    ).properties(width=WIDTH, height=26 * rows["send_label"].nunique())
    faceted = chart.facet(facet=_facet("config", names), columns=1, data=_inline(data), spacing=14)
    return faceted.properties(title=_title(_latency_title(rows, int(tokens)), "Point: median; bar: lowest to highest."))


def block_ruler(frame: pd.DataFrame) -> Any:
    """KV cache groups as rows, blocks on one token axis, a panel per lookup: stored, needed and missing.

    ``frame`` is ``frames.blocks``. Groups with equal ranges are folded into one row and counted; the axis shows the
    part where the hit is decided. Stored is a filled bar, needed an outline around it, missing a second fill with
    its block numbers written out, so nothing rests on colour.
    """
    drawn = frame[frame["state"].isin(["stored", "needed", "missing"])]
    if not len(drawn):
        return None
    low, high = _zoom(drawn)
    panels = []
    findings = []
    requests = drawn["request_id"].drop_duplicates().tolist()
    for request in requests:
        part = frame[frame["request_id"] == request]
        rows = _fold(part)
        head = part.iloc[0]
        missing = [row for row in rows if row["state"] == "missing"]
        text = f"{head['send_label']}: hit {number(head['hit_tokens'])} of {number(head['prompt_tokens'])}"
        if missing:
            blame = missing[0]
            text += f"; blocks {blame['range']} missing in {blame['row'].split(' · ')[0]}"
            findings.append((head["send_label"], blame))
        last = request == requests[-1]
        panels.append(_ruler_panel(rows, low, high, int(head["prompt_tokens"]), text, axis_title=last))
    if findings:
        send, blame = findings[0]
        who = blame["row"].split(" · ")[0]
        title = f"{send}: blocks {blame['range']} of {who} are needed and not stored"
    else:
        title = "Every needed block is stored"
    chart = alt.vconcat(*panels, spacing=26)
    return chart.properties(
        title=_title(title, "Filled: stored. Outline: needed to back the hit. Orange: needed, not stored.")
    )


_EMPTY = {"nothing": "nothing stored", "unknown": "not scanned"}


def _ruler_panel(rows: list[dict[str, Any]], low: int, high: int, tokens: int, text: str, *, axis_title: bool) -> Any:
    names = list(dict.fromkeys(row["row"] for row in rows))
    data = []
    for row in rows:
        if row["state"] in _EMPTY:
            data.append({**row, "from": low, "to": low, "label": _EMPTY[row["state"]]})
            continue
        if row["stop_token"] <= low or row["start_token"] >= high:
            continue
        start, stop = max(row["start_token"], low), min(row["stop_token"], high)
        data.append({**row, "from": start, "to": stop, "middle": (start + stop) / 2})
    scale = alt.Scale(domain=[low, high], nice=False, zero=False)
    base = alt.Chart(_inline(data)).encode(
        y=alt.Y(
            "row:N",
            sort=names,
            title=None,
            axis=alt.Axis(labelExpr="split(datum.label, ' · ')", grid=False),
            scale=alt.Scale(domain=names),
        ),
        x=alt.X(
            "from:Q", scale=scale, title="position in the prompt, tokens" if axis_title else None, axis=_count_axis(7)
        ),
    )
    spans = base.encode(x2="to:Q")
    stored = spans.transform_filter("datum.state === 'stored'").mark_bar(
        height=14, color=SEND_COLOURS["send 2"], opacity=0.85
    )
    missing = spans.transform_filter("datum.state === 'missing'").mark_bar(height=14, color=VERMILION)
    needed = spans.transform_filter("datum.state === 'needed'").mark_bar(
        height=24, filled=False, strokeWidth=1.8, stroke=GREY
    )
    label = base.encode(text="label:N")
    above = label.transform_filter("datum.state === 'needed'").mark_text(dy=-20, align="left")
    below = label.transform_filter("datum.state === 'stored'").mark_text(dy=21, align="right").encode(x="to:Q")
    blame = label.transform_filter("datum.state === 'missing'").mark_text(
        dy=21, align="left", color=VERMILION, fontWeight=600
    )
    absent = label.transform_filter("datum.state === 'nothing' || datum.state === 'unknown'").mark_text(
        dx=6, align="left"
    )
    end = alt.Chart(_inline([{"at": tokens}])).mark_rule(strokeDash=[4, 3]).encode(x="at:Q")
    chart = alt.layer(stored, missing, needed, end, above, below, blame, absent)
    return chart.properties(width=WIDTH, height=66 * len(names), title=alt.TitleParams(text=text, fontSize=12))


def hit_against_interval(table: pd.DataFrame) -> Any:
    """Hit length of send 2 against the retention interval, one line per prompt length.

    ``table`` is ``frames.sweep``.
    """
    rows = table[table["hit_2"].notna()]
    if rows["interval"].nunique() < 2:
        return None
    order = rows.sort_values("interval_order")["interval"].drop_duplicates().tolist()
    lengths = sorted(rows["tokens"].unique().tolist())
    data = [
        {
            "interval": row.interval,
            "hit": int(row.hit_2),
            "length": f"{row.tokens:,} tokens",
            "text": f"{row.tokens:,} tokens" if row.interval == order[-1] else "",
        }
        for row in rows.itertuples()
    ]
    colours = {f"{length:,} tokens": SERIES[place % len(SERIES)] for place, length in enumerate(reversed(lengths))}
    base = alt.Chart(_inline(data)).encode(
        x=alt.X(
            "interval:O",
            sort=order,
            title="retention interval, tokens",
            axis=alt.Axis(labelAngle=0),
            scale=alt.Scale(padding=0.3),
        ),
        y=alt.Y("hit:Q", title="cached tokens on send 2", axis=_count_axis(6)),
        color=_colour("length", colours),
        detail="length:N",
    )
    labels = base.mark_text(align="left", dx=9, fontWeight=600).encode(text="text:N")
    chart = alt.layer(base.mark_line(strokeWidth=1.5), base.mark_point(filled=True, size=50), labels)
    title = _interval_title(rows[rows["tokens"] == lengths[-1]], lengths[-1])
    return chart.properties(width=WIDTH, height=280, title=_title(title))


def cost_against_shortfall(table: pd.DataFrame) -> Any:
    """What one prompt leaves in the cache against the tokens that send 2 is short of full; a point per interval."""
    rows = table[table["short_2"].notna() & table["blocks"].notna()]
    if not len(rows) or rows["interval"].nunique() < 2:
        return None
    tokens = int(rows["tokens"].max())
    rows = rows[rows["tokens"] == tokens].sort_values("interval_order")
    in_bytes = bool(rows["bytes"].notna().all())
    points = [
        (row.bytes / 2**20 if in_bytes else float(row.blocks), int(row.short_2), row.interval)
        for row in rows.itertuples()
    ]
    data = _merge_labels(points)
    right, top = max(item["cost"] for item in data), max(item["short"] for item in data)
    for item in data:
        item["left"] = item["cost"] > right * 0.7
    base = alt.Chart(_inline(data)).encode(
        x=alt.X(
            "cost:Q",
            title=f"kept in the cache after one prompt, {'MiB' if in_bytes else 'blocks'}",
            axis=_count_axis(6),
            scale=alt.Scale(domain=[0, right * 1.08], nice=False),
        ),
        y=alt.Y(
            "short:Q",
            title="tokens short of full on send 2",
            axis=_count_axis(6),
            scale=alt.Scale(domain=[0, max(top * 1.12, 1)], nice=False),
        ),
    )
    labels = base.encode(text="text:N")
    chart = alt.layer(
        base.mark_point(filled=True, size=90, color=SERIES[0]),
        labels.transform_filter("datum.left").mark_text(align="right", dy=-14, dx=4),
        labels.transform_filter("!datum.left").mark_text(align="left", dx=10, dy=-8),
    )
    cheapest, best = rows.loc[rows["blocks"].idxmin()], rows.sort_values(["short_2", "blocks"]).iloc[0]
    if best["short_2"] < cheapest["short_2"]:
        ratio = best["blocks"] / max(cheapest["blocks"], 1)
        title = (
            f"Reusing all but {number(best['short_2'])} of {number(tokens)} tokens takes {ratio:.1f} times the blocks"
        )
    else:
        title = f"More retention buys nothing for a prompt of {number(tokens)} tokens"
    return chart.properties(
        width=WIDTH, height=280, title=_title(title, "Each point is a retention interval; lower left is better.")
    )


def equality_matrix(frame: pd.DataFrame) -> Any:
    """Documents × served names × pair of answers, each cell saying in words whether the two were the same."""
    if not len(frame):
        return None
    documents = sorted(frame["document"].dropna().unique().tolist(), key=_natural)
    models = frame["model"].dropna().drop_duplicates().tolist()
    data = [
        {
            "document": row.document,
            "model": row.model,
            "pair": str(row.pair).replace("-", " / "),
            "class": row.kind if row.kind in CLASS_COLOURS else "not compared",
            "text": {"identical": "same", "not compared": "–"}.get(row.kind, row.kind),
        }
        for row in frame.assign(kind=frame["class"].fillna("not compared")).itertuples()
    ]
    base = alt.Chart().encode(
        y=alt.Y("document:N", sort=documents, title=None),
        x=alt.X("pair:N", title=None, axis=alt.Axis(labelAngle=0, domain=False, ticks=False)),
    )
    cells = base.mark_rect(cornerRadius=3, height={"band": 0.86}, width={"band": 0.94}).encode(
        color=_colour("class", CLASS_COLOURS)
    )
    words = base.mark_text(color="#fff", fontWeight=600).encode(text="text:N")
    chart = alt.layer(cells, words).properties(width=240, height=24 * len(documents))
    faceted = chart.facet(facet=_facet("model", models), columns=2, data=_inline(data), spacing=24)
    warm = frame[frame["pair"] == "cold-warm"]
    equal = int((warm["class"] == "identical").sum())
    title = f"{equal} of {count(len(warm), 'warm answer')} equal their cold ones" if len(warm) else "Answers compared"
    return faceted.properties(title=_title(title, "cold / control: the same request twice without the cache."))


def time_spent(frame: pd.DataFrame) -> Any:
    """Where the time went: stages, then servers starting and serving, on the run's own clock. ``frames.timeline``."""
    if not len(frame):
        return None
    stages = frame[frame["what"] == "stage"]
    lanes = (
        stages["lane"].drop_duplicates().tolist()
        + frame.loc[frame["what"] != "stage", "lane"].drop_duplicates().tolist()
    )
    data = [
        {
            "lane": row.lane,
            "what": row.what,
            "from": round(row.start_min, 3),
            "to": round(row.stop_min, 3),
            "text": f"{row.seconds:,.0f} s" if row.what != "serving" else "",
        }
        for row in frame.itertuples()
    ]
    end = max(item["to"] for item in data)
    colours = {"stage": SEND_COLOURS["send 1 (cold)"], "starting": SERIES[4], "serving": SERIES[0]}
    base = alt.Chart(_inline(data)).encode(
        y=alt.Y("lane:N", sort=lanes, title=None),
        x=alt.X(
            "from:Q",
            title="minutes since the start",
            axis=_count_axis(),
            scale=alt.Scale(domain=[0, end * 1.02 or 1], nice=False),
        ),
    )
    bars = base.mark_bar(height={"band": 0.66}, cornerRadius=2).encode(
        x2="to:Q",
        color=alt.Color(
            "what:N", scale=alt.Scale(domain=list(colours), range=list(colours.values())), legend=alt.Legend(title=None)
        ),
    )
    labels = base.transform_filter("datum.what === 'stage'").mark_text(align="left", dx=5, color="#fff", fontWeight=600)
    wide = labels.transform_filter(f"datum.to - datum.from > {end * 0.08}").encode(text="text:N")
    chart = alt.layer(bars, wide).properties(width=WIDTH, height=24 * len(lanes))
    starting = frame.loc[frame["what"] == "starting", "seconds"].sum()
    started = int((frame["what"] == "starting").sum())
    title = f"{end:.1f} minutes"
    if started:
        # Not "of them": a server may start behind another one's work.
        title += f"; starting {count(started, 'server')} took {starting / 60:.1f}"
    return chart.properties(title=_title(title))


def _pick(rows: pd.DataFrame, configs: Sequence[str] | None) -> tuple[pd.DataFrame, list[str]]:
    names = list(configs) if configs is not None else rows["config"].drop_duplicates().tolist()[:8]
    return rows[rows["config"].isin(names)], names


def _fold(part: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of one panel; groups of one label with equal ranges become one, named with their number."""
    folded: dict[tuple[Any, ...], list[pd.DataFrame]] = {}
    for _, group in part.groupby("gid", sort=True):
        ranges = tuple(zip(group["state"], group["start"].fillna(-1), group["stop"].fillna(-1), strict=True))
        folded.setdefault((group["group"].iloc[0], ranges), []).append(group)
    out = []
    for (label, _), groups in folded.items():
        first = groups[0]
        gids = [int(group["gid"].iloc[0]) for group in groups]
        kind, _, size = str(label).partition(" · ")
        name = f"{len(gids)} {kind} groups" if len(gids) > 1 else f"{kind} group"
        wanted = [block_range(row.start, row.stop) for row in first.itertuples() if row.state == "needed"]
        for row in first.itertuples():
            empty = pd.isna(row.start)
            span = "" if empty else block_range(row.start, row.stop)
            item = {"row": f"{name} · {size}", "state": row.state, "range": span, "wanted": ", ".join(wanted)}
            item["start_token"] = 0 if empty else int(row.start_token)
            item["stop_token"] = 0 if empty else int(row.stop_token)
            out.append({**item, "label": f"{row.state} {span}"})
    return out


def _zoom(drawn: pd.DataFrame) -> tuple[int, int]:
    """The token range where hits are decided: from the first needed or missing block that isn't a whole prefix."""
    high = int(max(drawn["stop_token"].max(), drawn["prompt_tokens"].max()))
    wanted = drawn[drawn["state"].isin(["needed", "missing"]) & (drawn["start"] > 0)]
    kept = drawn[(drawn["state"] == "stored") & (drawn["start"] > 0)]
    starts = [int(part["start_token"].min()) for part in (wanted, kept) if len(part)]
    if not starts:
        return 0, high
    pad = max(int((high - min(starts)) * 0.12), 1)
    return max(min(starts) - pad, 0), high + pad // 3


def _merge_labels(points: Iterable[tuple[float, int, str]]) -> list[dict[str, Any]]:
    """Points whose labels would lie on each other share one, in order: ``64, 512, 1,024, dense``."""
    found = list(points)
    wide, tall = max(point[0] for point in found) or 1, max(point[1] for point in found) or 1
    out: list[dict[str, Any]] = []
    for cost, short, name in found:
        near = next(
            (
                item
                for item in out
                if abs(item["cost"] - cost) < wide * 0.05 and abs(item["short"] - short) < tall * 0.06
            ),
            None,
        )
        if near is None:
            out.append({"cost": round(cost, 3), "short": short, "text": name, "names": [name]})
        else:
            near["names"].append(name)
            near["text"] = " · ".join(near["names"])
            if (near["cost"], near["short"]) != (round(cost, 3), short):
                out.append({"cost": round(cost, 3), "short": short, "text": "", "names": []})
    return [{key: value for key, value in item.items() if key != "names"} for item in out]


def _interval_title(rows: pd.DataFrame, tokens: int) -> str:
    best = rows["hit_2"].max()
    if not best:
        return f"No interval brings a hit to the second send of {number(tokens)} tokens"
    order = rows.sort_values("interval_order")["interval"].tolist()
    good = rows.loc[rows["hit_2"] == best, "interval"].tolist()
    if len(good) == len(order):
        return f"Every interval gives the same hit, {number(best)} of {number(tokens)} tokens"
    verb = ("Intervals", "reuse") if len(good) > 1 else ("Interval", "reuses")
    title = f"{verb[0]} {_runs(good, order)} {verb[1]} {number(best)} of {number(tokens)} tokens"
    lost = [row for row in rows.sort_values("interval_order").itertuples() if 0 < row.hit_2 < best]
    zero = rows.loc[rows["hit_2"] == 0, "interval"].tolist()
    parts = [f"{row.interval} loses {1 - row.hit_2 / best:.0%} of it" for row in lost[:2]]
    parts += [f"{_runs(zero, order)} {'get' if len(zero) > 1 else 'gets'} nothing"] if zero else []
    return "; ".join([title, *parts])


def _latency_title(rows: pd.DataFrame, tokens: int) -> str:
    hit = rows[rows["cached_tokens"].fillna(0) > 0]
    if len(hit):
        name = hit.iloc[0]["config"]
        warm = hit[hit["config"] == name]["median_ms"].min()
        cold = rows[(rows["config"] == name) & (rows["index"] == 1)]["median_ms"]
        if len(cold) and cold.iloc[0] > warm:
            span = f"from {cold.iloc[0]:,.0f} down to {warm:,.0f} ms"
            return f"A hit brings the first token after {number(tokens)} prompt tokens {span} ({name})"
    return f"Time to first token of a {number(tokens)}-token prompt"


def block_range(start: Any, stop: Any) -> str:
    """Blocks as people read them, both ends included: ``328–391``."""
    return f"{start:,}–{stop - 1:,}" if stop - start > 1 else f"{start:,}"


def _span(values: pd.Series[Any]) -> str:
    return number(values.min()) if values.min() == values.max() else f"{number(values.min())}–{number(values.max())}"


def _listing(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + f" and {names[-1]}"


def _unique(values: pd.Series[Any]) -> list[str]:
    return [str(value) for value in values.drop_duplicates()]


def _runs(names: Sequence[str], order: Sequence[str]) -> str:
    """Neighbours in ``order`` as a span: ``64 to 1,024 and dense``."""
    runs: list[list[str]] = []
    for place, name in enumerate(order):
        if name not in names:
            continue
        numeric = name[0].isdigit()
        if runs and numeric and runs[-1][-1][0].isdigit() and order[place - 1] == runs[-1][-1]:
            runs[-1].append(name)
        else:
            runs.append([name])
    return _listing([f"{run[0]} to {run[-1]}" if len(run) > 2 else " and ".join(run) for run in runs])


def _natural(name: str) -> tuple[Any, ...]:
    digits = "".join(character for character in str(name) if character.isdigit())
    return (int(digits) if digits else math.inf, str(name))


def _title(text: str, subtitle: str = "") -> Any:
    lines = textwrap.wrap(text, 92) or [""]
    return alt.TitleParams(text=lines, subtitle=textwrap.wrap(subtitle, 110) if subtitle else [])


def _facet(field: str, order: Sequence[str]) -> Any:
    return alt.Facet(f"{field}:N", sort=list(order), header=alt.Header(title=None, labelAnchor="start", labelPadding=4))


def _colour(field: str, colours: dict[str, str]) -> Any:
    return alt.Color(f"{field}:N", scale=alt.Scale(domain=list(colours), range=list(colours.values())), legend=None)


def _count_axis(ticks: int = 8) -> Any:
    return alt.Axis(format=",.6~r", tickCount=ticks)


def _inline(rows: list[dict[str, Any]]) -> Any:
    return alt.InlineData(values=[{key: _plain(value) for key, value in row.items()} for row in rows])


def _plain(value: Any) -> Any:
    """JSON's own types: a NumPy scalar becomes Python's, a missing value null."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value
