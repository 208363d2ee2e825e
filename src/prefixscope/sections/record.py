"""The run's own record: where its time went, and what makes its numbers less than certain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefixscope import charts, frames, redact, streaming
from prefixscope.material import Material
from prefixscope.quantities import count, number
from prefixscope.sections.section import Section, Table, command, empty, figures


def time_spent(material: Material) -> Section:
    title, section_id = "Where the time went", "time"
    chart = charts.time_spent(material.timeline)
    if chart is None:
        return empty(material, section_id, title, "No stage has run yet.", None)
    rows = tuple((*key, number(len(spent)), f"{sum(spent):,.1f}") for key, spent in _spent(material.run).items())
    return Section(
        id=section_id,
        title=title,
        before=(
            "What each stage took, and when each server was starting or serving. A server may start behind other work. "
            "Measuring includes the wait for its server.",
        ),
        figures=figures(section_id, chart),
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


def _spent(run: Mapping[str, Any]) -> dict[tuple[str, str], list[float]]:
    """(stage, what) → seconds of each time, stage by stage as they began; whole, where a stage times no measuring."""
    totals: dict[tuple[str, str], list[float]] = {}
    for item in run.get("time", []):
        if isinstance(item, Mapping) and isinstance(item.get("seconds"), (int, float)):
            key = redact.clean(item.get("stage", "")), redact.clean(item.get("what", ""))
            totals.setdefault(key, []).append(float(item["seconds"]))
    stages = {redact.clean(name): one for name, one in (run.get("stages") or {}).items() if isinstance(one, Mapping)}
    for name, one in stages.items():
        if isinstance(one.get("seconds"), (int, float)) and not any(
            of == name and what.startswith("measuring") for of, what in totals
        ):
            waited = any(of == name for of, _ in totals)
            totals[name, "measuring" if waited else "all of it"] = [float(one["seconds"])]
    began = sorted(stages, key=lambda name: str(stages[name].get("started_at") or "9"))
    return dict(sorted(totals.items(), key=lambda one: began.index(one[0][0]) if one[0][0] in began else len(began)))


def engines(material: Material) -> Table | None:
    """What each traced server resolved its settings to; None where fewer than two were traced."""
    if len(material.telling.engines) < 2:
        return None
    named = {str(row.id): str(row.setting) for row in frames.servers(material.run).itertuples()}
    rows = tuple(
        (
            redact.clean(server, limit=60),
            redact.clean(named.get(server, "—"), limit=80),
            redact.clean(one.version),
            "none" if one.spec_method is None else f"{redact.clean(one.spec_method)}, {number(one.spec_tokens)} tokens",
            f"{one.interval:,}" if isinstance(one.interval, int) else one.interval or "—",
            number(one.scheduler_block),
            number(one.min_prompt_tokens),
            number(one.pool_blocks),
        )
        for server, one in material.telling.engines.items()
    )
    columns = (
        "server", "started as", "vLLM", "drafter", "retention interval", "scheduler block, tokens",
        "shortest prompt that can hit, tokens", "pool, blocks",
    )  # fmt: skip
    return Table(
        caption=f"What each of the {len(rows):,} traced engines resolved its settings to.", columns=columns, rows=rows,
        numeric=frozenset(columns[4:]),
    )  # fmt: skip


def warnings(material: Material) -> Section:
    found = [item for item in material.run.get("warnings", []) if isinstance(item, Mapping)]
    rows = [tuple(redact.clean(item.get(key) or "") for key in ("stage", "code", "detail", "remedy")) for item in found]
    releases = sorted({redact.clean(header.get("version"), limit=40) for header in material.headers})
    if len(releases) > 1:
        said = (
            f"Engines of {len(releases)} vLLM releases answered ({', '.join(releases)}): their hits follow other rules."
        )
        rows.append(("", "several-releases", said, "investigate each release in a run of its own"))
    measured, shown = (frame["tokens"].nunique() for frame in (material.sent, material.hits))
    if shown < measured:
        said = (
            f"{number(measured)} prompt lengths were measured; figures and tables show {shown} of them, spread evenly."
        )
        rows.append(("", "not-all-shown", said, "nothing to do: the verdict rests on all of them"))
    rows += [
        ("", "unreadable-rows", problem, "nothing to do: everything else was read") for problem in material.problems
    ]
    streamed = material.generations
    if len(streamed) and (gain := streaming.too_fast(streamed)):
        rows.append(("speculation", "gain-too-large", gain, "an idle machine, and a new run"))
    if len(streamed) and (held := streaming.held_back(streamed)):
        what = "longer answers: -p speculation.answer_tokens=N"
        if (material.run.get("target") or {}).get("kind") != "embedded":
            what = f"ask the engine itself, not through a gateway; {what}"
        rows.append(("speculation", "one-burst", held, what))
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
