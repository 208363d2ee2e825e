"""Output equality: does a cached prefix change what the model says?"""

from __future__ import annotations

import pandas as pd

from prefixscope import charts, redact
from prefixscope.material import Material
from prefixscope.quantities import count, number, wilson
from prefixscope.sections.section import Figure, Section, Table, empty


def equality(material: Material, *, include_text: bool) -> Section:
    title, section_id = "Output equality", "equality"
    table = material.comparisons
    if not len(table):
        return empty(material, section_id, title, "No answers have been compared yet.", "equality")
    tables = [_differences(table)]
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
        figures=() if figure is None else (Figure(id=section_id, chart=figure, table=_all(table)),),
        after=_shares(table),
        tables=tuple(tables),
    )


def _shares(table: pd.DataFrame) -> tuple[str, ...]:
    """How many warm and control answers equal the cold ones, and what may be concluded from it."""
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
    return tuple(after)


def _all(table: pd.DataFrame) -> Table:
    """Every answer's comparisons, in words."""
    pairs = table["pair"].dropna().drop_duplicates().tolist()
    cells = table.drop_duplicates(["document", "model", "pair"]).set_index(["document", "model", "pair"])["class"]
    rows = tuple(
        (str(document), str(model), *(_word(cells.get((document, model, pair))) for pair in pairs))
        for document, model in table[["document", "model"]].drop_duplicates().itertuples(index=False)
    )
    columns = ("document", "served name", *(pair.replace("-", " / ") for pair in pairs))
    return Table(caption="Every compared answer.", columns=columns, rows=rows, fold=True)


def _word(found: object) -> str:
    return {"identical": "same"}.get(str(found), "—" if pd.isna(found) else str(found))


def _differences(table: pd.DataFrame) -> Table:
    """Every pair that is not identical, or void."""
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
    return Table(
        caption="Every pair that is not identical." if rows else "All pairs are identical; nothing to list.",
        columns=columns,
        rows=rows,
        numeric=frozenset(columns[4:7]),
    )
