"""``incident.md``: the note that a person would have written about a run, every sentence chosen from its data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefixscope import page, redact
from prefixscope.notes import cause, checking, context, remedy, ruled_out, symptom, upstream
from prefixscope.notes.account import Account, shared_account
from prefixscope.notes.figures import Picture, pictures
from prefixscope.notes.markdown import Markdown, bullets, code, fence, inert, render

NAME = "incident.md"


def write_incident(run_dir: Path | str, *, out: Path | str | None = None) -> Path:
    """Write the note of a run directory, half-finished ones too, with its figures beside it, and return its path.

    Parameters
    ----------
    out : the Markdown file; ``RUN/incident.md`` where not given.

    Raises
    ------
    ReportError
        where there is no such directory, its schema is another, a file would hold a secret, or can't be written.
    """
    target = Path(out) if out is not None else Path(run_dir) / NAME
    with shared_account(Path(run_dir)) as told:
        drawn = pictures(told, target.stem)
        text = note(told, drawn)
    for picture in drawn.values():
        picture.write(target.parent)
    return page.write(text, target)


def note(told: Account, drawn: Mapping[str, Picture]) -> str:
    """The note's text, which shows these figures."""
    return render("incident.md.j2", figures=drawn, **values(told))


def values(told: Account) -> dict[str, Any]:
    """What the template arranges: sentences, tables and commands, each empty where the run has no data for it."""
    run = redact.manifest(told.material.run)
    rows = topics(told)
    made = run.get("prefixscope_version")
    return {
        "title": symptom.title(told),
        "date": upstream.day(str(run["created_at"])[:10]) if run.get("created_at") else "Date not known",
        "made_with": f", by prefixscope {made}." if made else ", by prefixscope.",
        "run_id": run.get("run_id") or "unknown",
        "verdict": told.verdict,
        "faulty": told.faulty,
        "reuses": told.verdict.code == "reuses",
        "brought": told.material.brought,
        "served": context.served(told),
        "configurations": context.configurations(told),
        "method": context.method(told),
        "commands": context.briefly(told),
        "hits": symptom.hits(told),
        "lookups": symptom.traced(told),
        "effects": _some(
            symptom.adapter(told), symptom.new_ending(told), symptom.waiting(told), symptom.drafter_off(told)
        ),
        "cause_name": cause.name(told),
        "cause": _some(
            cause.untraced(told),
            cause.how_found(told),
            cause.groups(told.main.header) if told.main is not None else "",
            cause.without_drafter(told),
            cause.drop(told.main.header) if told.main is not None else "",
            cause.diagnosis(told),
        ),
        "blocks": cause.blocks(told),
        "cause_after": _some(cause.seen_by_whom(told), cause.with_remedy(told), cause.predicted(told)),
        "remedy": _some(remedy.sentence(told), remedy.releases(told, rows), remedy.rule(told)),
        "flags": remedy.flags(told),
        "intervals": remedy.intervals(told) if told.faulty else None,
        "cost": _some(
            remedy.price(told),
            remedy.size(told),
            remedy.short(told),
            symptom.follow_up(told, told.verdict.remedy_config),
            ruled_out.equality(told),
            remedy.pressure(told),
        ),
        "ruled_out": ruled_out.ruled_out(told),
        "upstream": [told_row(row) for row in rows],
        "read_on": upstream.day(upstream.read_on()),
        "checks": checking.commands(told),
        "address": code(f"python3 resend.py {checking.ADDRESS} MODEL"),
        "script": checking.script(told),
        "open": ruled_out.still_open(told),
        "answers": _answers(told, rows),
        "fence": fence,
        "bullets": bullets,
    }


def topics(told: Account) -> tuple[upstream.Row, ...]:
    """Upstream's rows for the cause that the trace names, or for a known fault that the verdict names."""
    found: list[str] = []
    if told.diagnosis is not None and told.main is not None:
        code = told.diagnosis.cause
        mamba = any(group.kind == "mamba" for group in told.main.header.groups)
        found = [code, f"{code}:{'drop' if told.main.header.drop_groups else 'plain'}", *([f"{code}:mamba"] * mamba)]
    named = upstream.refs_in(f"{told.verdict.sentence} {'' if told.diagnosis is None else told.diagnosis.remedy}")
    if told.faulty and not found:
        found = upstream.faults_named(named)
    return upstream.of_topics(found, named if told.faulty else ())


def told_row(row: upstream.Row) -> Markdown:
    """One pull request or issue, as a list says it."""
    return Markdown(f"{inert(row.ref)} ({row.kind}, {inert(row.status)}) {inert(row.about)}. Source: {row.source}.")


def _answers(told: Account, rows: tuple[upstream.Row, ...]) -> list[tuple[str, str]]:
    """The questions that a reader searches for, where the run has an answer."""
    if not told.faulty:
        return []
    why = told.diagnosis.sentence if told.diagnosis is not None else ""
    found = [
        (f"Why does a resend hit {'nothing' if told.verdict.code == 'none' else 'only a part'}?", why),
        (
            "How do I get the hits back without turning the drafter off?"
            if told.main is not None and told.main.header.drop_groups
            else "How do I get the hits back?",
            " ".join(_some(remedy.sentence(told), remedy.releases(told, rows))),
        ),
        ("What does that cost?", " ".join(_some(remedy.price(told), remedy.short(told)))),
    ]
    return [(question, answer) for question, answer in found if answer]


def _some(*texts: str) -> list[str]:
    return [text for text in texts if text]
