"""``issue.md``: the run as a bug report in the shape of vLLM's own form, short enough for GitHub.

The headings are those of vLLM's form (`.github/ISSUE_TEMPLATE/400-bug-report.yml`): Your current environment, Describe
the bug, Before submitting a new issue. What is long is folded, and cut with a note where the whole gets too long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from prefixscope import page, redact, standing
from prefixscope.notes import cause, checking, context, remedy, ruled_out, symptom, upstream
from prefixscope.notes.account import Account, shared_account
from prefixscope.notes.incident import told_row
from prefixscope.notes.markdown import Markdown, bullets, fence, folded, inert, render
from prefixscope.quantities import count

NAME = "issue.md"
MOST_CHARACTERS = 60_000
"""Below GitHub's own limit of 65,536, so that a person can still add to it."""

LEFT_OUT = 800
"""Characters kept for saying what did not fit."""

_REPORT = "The run's report has all of it."
_NO_FAULT = "This run shows no fault; the form is filled all the same."
_MET = "This run was not asked whether prefixes are reused; what it met on the way is below."


@dataclass(frozen=True, slots=True)
class Part:
    """Something long: shown folded. ``whole`` parts are worth nothing cut, and are left out instead."""

    summary: str
    text: str
    language: str = ""
    whole: bool = False
    instead: str = _REPORT

    def within(self, room: int) -> Markdown:
        """The part in at most ``room`` characters, said so where something is cut; empty where not even that fits."""
        full = self._folded(self.text)
        if len(full) <= room:
            return full
        lines = self.text.splitlines()
        note = f"\n\nCut to fit: {{}} more. {self.instead}"
        left = room - len(self._folded("")) - len(note) - 40
        kept = 0
        if not self.whole:
            for line in lines:
                left -= len(line) + 1
                if left < 0:
                    break
                kept += 1
        told = note.format(count(len(lines) - kept, "line"))
        shown = self._folded("\n".join(lines[:kept]), told) if kept else folded(self.summary, Markdown(told.strip()))
        return shown if len(shown) <= room else Markdown("")

    def _folded(self, text: str, note: str = "") -> Markdown:
        body = fence(text, self.language) if self.language else Markdown(text)
        return folded(self.summary, Markdown(f"{body}{note}"))


def write_issue(run_dir: Path | str, *, out: Path | str | None = None) -> Path:
    """Write a run as a bug report for vLLM and return its path.

    Parameters
    ----------
    out : the Markdown file; ``RUN/issue.md`` where not given.

    Raises
    ------
    ReportError
        where there is no such directory, its schema is another, the file would hold a secret, or can't be written.
    """
    with shared_account(Path(run_dir)) as told:
        text = issue(told)
    return page.write(text, Path(out) if out is not None else Path(run_dir) / NAME)


def issue(told: Account, *, most: int = MOST_CHARACTERS) -> str:
    """The report's text, of at most ``most`` characters."""
    environment = Part(_environment_title(told), context.environment(told), "text")
    # What names the fault comes first and is bounded by itself; the folded parts share what it leaves, in this order.
    bare = len(_text(told, Markdown(""), ()))
    room = max(most - bare - LEFT_OUT, 0)
    first = environment.within(room // 3)
    room -= len(first)
    made: list[Markdown] = []
    left: list[str] = []
    for part in _parts(told):
        shown = part.within(room - 2)
        made += [shown] if shown else []
        left += [] if shown else [part.summary]
        room -= len(shown) + 2 if shown else 0
    if left:
        made.append(inert(f"Left out to fit: {'; '.join(left)}"[: LEFT_OUT - 100] + f". {_REPORT}"))
    return _text(told, first, made)


def _text(told: Account, environment: Markdown, parts: Iterable[Markdown]) -> str:
    run, rows = redact.manifest(told.material.run), remedy.topics(told)
    table = symptom.hits(told, longest=True)
    return render(
        "issue.md.j2",
        title=symptom.title(told),
        faulty=told.faulty,
        no_fault=_MET if remedy.of_cause(told) else _NO_FAULT,
        unfinished=Markdown(standing.of_run(told.material.run).markdown),
        headline=told.verdict.headline,
        elsewhere=symptom.elsewhere(told),
        environment=environment,
        servers=context.servers(told),
        method=context.method(told),
        expected=expected(told),
        hits=table[0] if table is not None else None,
        traced=told.main is not None,
        cause=[text for text in _cause(told) if text],
        ruler=cause.figure(told),
        remedy=[text for text in (remedy.sentence(told), remedy.price(told), told.verdict.upgrade) if text]
        or remedy.of_cause(told),
        ruled_out=[text for text in (*ruled_out.ruled_out(told), ruled_out.equality(told)) if text],
        upstream=[told_row(row) for row in rows],
        read_on=upstream.day(upstream.read_on()),
        parts=list(parts),
        open=ruled_out.still_open(told),
        version=run.get("prefixscope_version") or "",
        run_id=run.get("run_id") or "unknown",
        bullets=bullets,
    )


def _environment_title(told: Account) -> str:
    recorded = redact.manifest(told.material.run).get("collect_env", {}).get("lines")
    if recorded:
        return "Lines of python -m vllm.collect_env, and what prefixscope recorded; please add the whole output"
    return "As prefixscope recorded it; please add the output of python collect_env.py"


def expected(told: Account) -> str:
    """What the second send should hit: as the release itself answers when every block is cached, or as the control."""
    if not told.faulty or told.main is None or told.main.reachable_tokens is None:
        return ""
    if told.main.reachable_tokens <= told.main.hit_tokens:
        return ""
    return (
        f"the second send of these {told.main.tokens:,} tokens hits {told.main.reachable_tokens:,}: that is what the "
        "release's own lookup gives when every block of the prompt is cached."
    )


def _cause(told: Account) -> Iterator[str]:
    header = told.main.header if told.main is not None else None
    yield cause.untraced(told) if told.faulty else ""
    yield cause.groups(header) if header is not None else ""
    yield cause.drop(told)
    yield cause.diagnosis(told)
    yield cause.predicted(told)


def _parts(told: Account) -> Iterator[Part]:
    """What is folded, the most telling first."""
    test = checking.test(told)
    if test:
        yield Part(
            "Reproduction without GPU or weights: a self-contained pytest for vLLM's tree",
            test,
            "python",
            whole=True,
            instead="`prefixscope export-test RUN` writes this test; it did not fit.",
        )
    yield Part("Reproduction against a running server: three sends of one prompt", checking.script(told), "python")
    started = context.commands(told)
    for which, command in started[:1]:
        yield Part(f"How the server was started: {which}", command, "sh")
    if (blocks := cause.blocks(told)) is not None:
        yield Part("Blocks needed, stored and missing", blocks)
    if (table := symptom.hits(told, most=200)) is not None:
        yield Part("All hit lengths", table[0])
    if told.faulty and (swept := remedy.intervals(told)) is not None:
        yield Part("Hits and blocks kept by retention interval", swept[0])
    if told.diagnosis is not None:
        yield Part(
            "What was recorded of the lookup", "\n".join(redact.clean(x) for x in told.diagnosis.evidence), "text"
        )
    if started and len(every := context.every_command(told, started[0][1])) > 1:
        text = "\n\n".join(f"# {name}\n{apart}" for name, apart in every)
        yield Part("Every server of the run, as its command differs from that one", text, "diff")
