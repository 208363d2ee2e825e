"""Speculative decoding: what the drafter gains in generation, and what it loses in prefill."""

from __future__ import annotations

from typing import Any

import pandas as pd

from prefixscope import charts, frames, noise, streaming, trade
from prefixscope.material import Material
from prefixscope.quantities import count, number
from prefixscope.sections.section import Section, Table, empty, figures

_ENOUGH = 5
"""Pairs from which Student's interval is no longer mostly that of its few degrees of freedom."""


_GAIN = (
    "A gain counts if its interval leaves out 1, and only together with what it costs: on a release that drops the "
    "hit, every repeated prompt is computed again, and long prompts with short answers lose more than the "
    "drafter brings."
)


def speculation(material: Material) -> Section:
    title, section_id = "Speculative decoding", "speculation"
    table = material.generations
    shapes = frames.by_shape(table)
    chart = charts.speed_by_shape(shapes, frames.effect(table, "tokens_per_s"))
    if chart is None:
        return empty(material, section_id, title, "No answer has been streamed yet.", "speculation")
    compared = table["arm"].nunique() > 1
    mix = trade.mix_of(material.run)
    found = None if mix is None else trade.weigh(table, material.resends, mix)
    findings = [("What was accepted", " ".join(streaming.drafted(shapes)))]
    if found is not None:
        findings.insert(0, ("The trade", trade.sentence(found)))
    if doubtful := " ".join(text for text in (streaming.too_fast(table), streaming.held_back(table)) if text):
        findings.insert(0, ("Doubtful", doubtful))
    if compared:
        findings.append(("The answers", noise.judge(material.output_pairs, frames.arm_labels(table)).sentence))
    counting = streaming.counted(table)
    if counting:
        findings.append(("Chunks are not tokens", counting))
    tables = [_record(table, material.headrooms)]
    if len(material.positions):
        tables.append(_positions(material.positions))
    if compared:
        tables.append(_differences(material))
    return Section(
        id=section_id,
        title=title,
        before=(
            "With speculative decoding a small drafter guesses a few tokens ahead, and the model checks them all in "
            "one step: each right guess is a token for nothing, each wrong one work for nothing. How often it is "
            f"right depends on the text. {_streamed(table)}",
        ),
        figures=figures(section_id, chart),
        findings=tuple(findings),
        after=(
            *((_GAIN,) if compared else ()),
            *_few(frames.record(table, material.headrooms)),
        ),
        tables=tuple(tables),
    )


def _streamed(table: pd.DataFrame) -> str:
    """How the answers were streamed: from two servers in turns where both ran at once."""
    if table["arm"].nunique() < 2:
        return "The same prompts were streamed from the server."
    turns = table["interleaved"].fillna(False).all()
    how = "either server in turns" if turns else "one server after the other"
    return f"The answers to the same prompts were streamed from {how}. Look for shapes whose two bars differ."


def _record(table: pd.DataFrame, heads: pd.DataFrame) -> Table:
    labels = table.drop_duplicates("arm").set_index("arm")["label"].to_dict()
    arms = [arm for arm in ("A", "B") if arm in labels]
    columns = ("what", *(str(labels[arm]) for arm in arms), *(("times", "95 %", "prompts") if len(arms) > 1 else ()))
    rows = []
    for row in frames.record(table, heads).to_dict("records"):
        cells = [str(row["metric"]), *(_side(row, arm.lower()) for arm in arms)]
        if len(arms) > 1:
            known = pd.notna(row["low"])
            cells += ["—" if pd.isna(row["times"]) else f"{row['times']:.2f}"]
            cells += [f"{row['low']:.2f}–{row['high']:.2f}" if known else "—", number(row["pairs"])]
        rows.append(tuple(cells))
    return Table(
        caption="Medians over requests, with the 10th and 90th percentile in brackets."
        + (
            " The trade divides by the mean time of a token instead, so its tokens/s are others. “Times”: the first "
            "over the second. With an interval it is the geometric mean over the prompts that both answered, without "
            "one the ratio of the two cells."
            if len(arms) > 1
            else ""
        ),
        columns=columns,
        rows=tuple(rows),
        numeric=frozenset(columns[1:]),
    )


def _side(row: dict[str, Any], arm: str) -> str:
    value, low, high = row[arm], row[f"{arm}_p10"], row[f"{arm}_p90"]
    if pd.isna(value):
        return "—"
    shown = [_share(v) if "acceptance" in str(row["metric"]) else _number(v) for v in (value, low, high) if pd.notna(v)]
    return shown[0] if len(shown) < 3 else f"{shown[0]} ({shown[1]}–{shown[2]})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.2f}" if abs(value) < 10 else f"{value:,.1f}"


def _share(value: float) -> str:
    return f"{value:.1%}" if value < 0.1 else f"{value:.0%}"


def _positions(places: pd.DataFrame) -> Table:
    rows = tuple(
        (
            str(row.label),
            str(row.shape),
            number(row.position),
            number(row.accepted),
            number(row.drafts),
            _share(row.share),
        )
        for row in places.itertuples()
    )
    columns = ("server", "shape", "place in the draft", "accepted", "drafts", "share")
    return Table(
        caption="Accepted tokens by their place in the draft.",
        columns=columns,
        rows=rows,
        numeric=frozenset(columns[2:]),
    )


def _differences(material: Material) -> Table:
    labels = frames.arm_labels(material.generations)
    rows = tuple(
        (str(row.pair), number(row.compared), number(row.differ), f"{row.low:.0%}–{row.high:.0%}")
        for row in noise.differences(material.output_pairs, material.comparisons, labels).itertuples()
    )
    columns = ("answers", "compared", "differ", "95 % of that share")
    return Table(
        caption="Answers to the same prompt: a server against itself shows its noise, one against the other the "
        "drafter, cold against warm the cache.",
        columns=columns,
        rows=rows,
        numeric=frozenset(columns[1:]),
    )


def _few(record: pd.DataFrame) -> tuple[str, ...]:
    """How many prompts stand behind the intervals, where a shape has too few for a narrow one."""
    rows = record[record["metric"].str.startswith("tokens/s, ") & record["pairs"].notna()]
    fewest, most = rows["pairs"].min(), rows["pairs"].max()
    if not len(rows) or fewest >= _ENOUGH or fewest == most:
        return ()
    return (
        f"Behind a single shape: {count(int(fewest), 'prompt')}, which leaves its interval wide; the one over all "
        f"{count(int(most), 'prompt')} is the one to go by.",
    )
