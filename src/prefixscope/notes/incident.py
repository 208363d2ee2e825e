"""``incident.md``: the note that a person would have written about a run, every sentence chosen from its data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefixscope import page, redact, standing
from prefixscope.diagnosis import cause_meaning
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
    page.write(text, target)  # first: where nothing can be written, the error names what was asked for
    for picture in drawn.values():
        picture.write(target.parent)
    return target


def note(told: Account, drawn: Mapping[str, Picture]) -> str:
    """The note's text, which shows these figures."""
    return render("incident.md.j2", figures=drawn, **values(told))


def values(told: Account) -> dict[str, Any]:
    """What the template arranges: sentences, tables and commands, each empty where the run has no data for it."""
    run = redact.manifest(told.material.run)
    rows = remedy.topics(told)
    made = run.get("prefixscope_version")
    return {
        "title": symptom.title(told),
        "date": upstream.day(str(run["created_at"])[:10]) if run.get("created_at") else "Date not known",
        "made_with": f", by prefixscope {made}." if made else ", by prefixscope.",
        "run_id": run.get("run_id") or "unknown",
        "in_short": in_short(told),
        "unfinished": Markdown(standing.of_run(told.material.run).markdown),
        "faulty": told.faulty,
        "reuses": told.verdict.code == "reuses",
        "brought": told.material.brought,
        "served": context.served(told),
        "configurations": context.configurations(told),
        "method": context.method(told),
        "commands": context.briefly(told),
        "started": context.started(told),
        "hits": symptom.hits(told),
        "lookups": symptom.traced(told),
        "elsewhere": symptom.elsewhere(told),
        "effects": _some(symptom.new_ending(told), symptom.waiting(told), symptom.drafter_off(told), *_asked(told)),
        "cause": _some(
            remedy.known_fault(told)[0],
            cause.untraced(told),
            cause.how_found(told),
            cause.groups(told.main.header) if told.main is not None else "",
            cause.without_drafter(told),
            cause.drop(told),
        ),
        "cause_name": cause.name(told),
        "diagnosis": cause.diagnosis(told),
        "blocks": cause.blocks(told),
        "cause_after": _some(
            *remedy.of_cause(told), cause.seen_by_whom(told), cause.with_remedy(told), cause.predicted(told)
        ),
        "remedy": _some(remedy.unmeasured(told), remedy.rule(told), remedy.choice(told)),
        "flags": remedy.flags(told),
        "intervals": remedy.intervals(told) if told.faulty else None,
        "cost": _some(
            remedy.cost(told) if told.faulty else "",
            remedy.short(told),
            symptom.follow_up(told, told.verdict.remedy_config),
            ruled_out.equality(told),
        ),
        "ruled_out": ruled_out.ruled_out(told),
        "upgrade": remedy.upgrade(told),
        "upstream": [told_row(row) for row in rows],
        "read_on": upstream.day(upstream.read_on()),
        "checks": checking.commands(told),
        "address": code(f"python3 resend.py {checking.ADDRESS} MODEL"),
        "script": checking.script(told),
        "open": ruled_out.still_open(told),
        "fence": fence,
        "bullets": bullets,
    }


def _asked(told: Account) -> list[str]:
    """What a run found that was asked for something else than hit lengths; the others are told it elsewhere or not."""
    return [*symptom.streamed(told), ruled_out.equality(told)] if told.verdict.code == "not asked" else []


def told_row(row: upstream.Row) -> Markdown:
    """One pull request or issue, as a list says it."""
    return Markdown(f"{inert(row.ref)} ({row.kind}, {inert(row.status)}) {inert(row.about)}. Source: {row.source}.")


def in_short(told: Account) -> list[str]:
    """At most four sentences: what was found, what that is, what helps at what price, and from which release on."""
    meaning = cause_meaning(told.diagnosis.cause) if told.diagnosis is not None and told.faulty else ""
    return _some(told.verdict.headline, meaning, *remedy.briefly(told))


def _some(*texts: str) -> list[str]:
    return [text for text in texts if text]
