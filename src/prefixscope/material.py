"""What a report draws from: one run directory, read once, with every name in it fit to leave it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from prefixscope import collect_env, frames, redact
from prefixscope.frames.columns import TEXT
from prefixscope.frames.rows import dicts_in
from prefixscope.frames.served import BY_SERVER, CACHED, answered
from prefixscope.geometry import BROUGHT, brought
from prefixscope.quantities import count, number, span
from prefixscope.telling import Telling, tell
from prefixscope.verdict import Verdict, of_frames

NAMES = {
    "cpus": "CPUs", "cpu": "CPU", "gpu": "GPU", "gpus": "GPUs", "memory_gib": "memory, GiB", "memory_gb": "memory, GB",
    "os": "operating system", "cuda": "CUDA", "vllm": "vLLM", "python": "Python", "torch": "PyTorch",
    "libc": "C library", "vllm version": "vLLM version",
}  # fmt: skip

_TRUTHS = {"True": "yes", "False": "no", "None": ""}


MOST_LENGTHS = 60
"""Prompt lengths that figures and tables show; of more, so many spread evenly, the shortest and the longest too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """Everything that sections draw from, read once."""

    run: dict[str, Any]
    sent: pd.DataFrame
    hits: pd.DataFrame
    latency: pd.DataFrame
    kept: pd.DataFrame
    sweep: pd.DataFrame
    answers: pd.DataFrame
    comparisons: pd.DataFrame
    telling: Telling
    generations: pd.DataFrame
    positions: pd.DataFrame
    output_pairs: pd.DataFrame
    resends: pd.DataFrame
    headrooms: pd.DataFrame
    timeline: pd.DataFrame
    headers: list[dict[str, Any]]
    problems: list[str]
    verdict: Verdict
    traced: bool = False
    brought: bool = False

    @property
    def resent(self) -> bool:
        """Whether it has hit lengths that it was not asked for: those of the long prompts of stage speculation."""
        return len(self.sent) > 0 and self.verdict.code == "not asked"

    @property
    def unasked(self) -> str:
        """What a run that was not asked for hit lengths, and sent no prompt for them, has measured; else empty."""
        if len(self.sent) or not (len(self.answers) or len(self.generations)):
            return ""
        return " ".join(["This run was not asked for hit lengths.", *_own_hits(self.answers, self.generations)])


def gather(run_dir: Path) -> Material:
    """Read a run directory into frames."""
    run, sent, stored = frames.load_run(run_dir), shareable(frames.sends(run_dir)), shareable(frames.kept(run_dir))
    found = None if len(sent) else brought(run_dir)
    verdict = of_frames(run_dir, sent, stored, found)
    telling, shown = tell(run_dir, sent, verdict), _spread(sent)
    headers = frames.trace_headers(run_dir, "trace" if found is None else BROUGHT)
    return Material(
        run={**run, "warnings": [*_warned(run), *_left_out(run_dir), *map(frames.warning, _unread(run_dir, run))]},
        sent=sent,
        hits=frames.hits(shown),
        latency=frames.latency(shown),
        kept=stored,
        sweep=swept if len(swept := frames.sweep(sent, stored)) else frames.predicted_sweep(run_dir),
        answers=shareable(frames.answers(run_dir)),
        comparisons=shareable(frames.comparisons(run_dir)),
        telling=telling,
        generations=shareable(frames.generations(run_dir)),
        positions=shareable(frames.positions(run_dir)),
        output_pairs=shareable(frames.output_pairs(run_dir)),
        resends=shareable(frames.resends(run_dir)),
        headrooms=shareable(frames.headrooms(run_dir)),
        timeline=shareable(frames.timeline(run)),
        headers=headers,
        problems=list(telling.problems),
        verdict=verdict,
        traced=bool(headers),
        brought=found is not None,
    )


def _own_hits(answers: pd.DataFrame, generations: pd.DataFrame) -> Iterable[str]:
    """What the compared and the streamed answers themselves took from the cache."""
    warm = answers[(answers["arm"] == "warm") & (answers["status"] == "ok")]
    hit = warm.dropna(subset=["cached_tokens", "prompt_tokens"])
    if len(hit):
        cached, prompts = hit["cached_tokens"], hit["prompt_tokens"]
        yield (
            f"Its own requests hit: {count(len(hit), 'warm answer')} took {span(cached)} of {span(prompts)} prompt "
            "tokens from the cache."
        )
    elif len(warm):
        yield f"{count(len(warm), 'warm answer')} did not say how much of the prompt was cached."
    streamed = generations[generations["status"] == "ok"]
    if len(streamed):
        cached = streamed["cached_tokens"].dropna()
        hits = f" and hit {span(cached)} tokens" if len(cached) else ""
        yield f"Its {count(len(streamed), 'streamed answer')} had a salt of their own each{hits}."


def _spread(sent: pd.DataFrame) -> pd.DataFrame:
    """The sends of few enough prompt lengths to show."""
    lengths = sorted(sent["tokens"].dropna().unique())
    if len(lengths) <= MOST_LENGTHS:
        return sent
    picked = {lengths[round(place * (len(lengths) - 1) / (MOST_LENGTHS - 1))] for place in range(MOST_LENGTHS)}
    return sent[sent["tokens"].isin(picked)]


def _warned(run: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """The run's own warnings, each with something to do: measure on where it names nothing."""
    for one in dicts_in(run, "warnings"):
        only = f" --only {one['stage']}" if one.get("stage") else ""
        yield {**one, "remedy": one.get("remedy") or f"prefixscope run -o RUN --resume{only}"}


def _left_out(run_dir: Path) -> Iterable[dict[str, str]]:
    """What was measured and is in no number, as a warning."""
    if said := frames.cut_short(run_dir):
        yield {"stage": "", "code": "cut-short", "detail": said, "remedy": "nothing to do: it was sent again, whole"}


def _unread(run_dir: Path, run: Mapping[str, Any]) -> list[str]:
    """What could not be read; of a shared run that was said when it was shared."""
    known = run.get("problems")
    if isinstance(known, list):
        return [redact.clean(one) for one in known]
    return frames.problems(run_dir)


def shareable(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with every name in it fit to leave the run directory; request ids stay, they join rows to traces."""
    out = frame.copy()
    for column in out.columns[out.dtypes == TEXT]:
        if column not in ("request_id", "cell", "series", "text"):
            limit = 2000 if column in ("error", "command") else 120
            names = {name: redact.clean(name, limit=limit) for name in out[column].dropna().unique()}
            out[column] = out[column].map(names).astype(TEXT)
    return out


def facts(material: Material) -> list[tuple[str, str, str]]:
    """What was investigated: (name, value, source); of several servers, the one that the verdict is about.

    A run asks its first server for facts. Where the verdict is about a server that was started otherwise, what depends
    on the start is told of that one, as far as it is known; of the first one it is told under that one's name.
    """
    run = redact.manifest(material.run)
    rows = [("target", label(material), "run.json")]
    asked, own = _first_asked(material), _of_verdict(material)
    for item in run["facts"]:
        name, value, source = str(item["name"] or ""), plain(item["value"]), item["source"] or ""
        if name == CACHED and item["value"] is None:
            said, source = answered(_cached(material))
            value = said or ""
        if asked and name in BY_SERVER:
            rows += [(name, *own[name])] if name in own else [(f"{name} ({asked})", value, source)]
        else:
            rows.append((NAMES.get(name, name), value, source))
    rows += [(name, value, "trace header") for name, value in _geometry(material.headers)]
    rows += [
        (NAMES.get(name, name.replace("_", " ")), value, "this machine") for name, value in run["environment"].items()
    ]
    rows += [(name, value, collect_env.SOURCE) for name, value in collect_env.told(run)]
    return [row for row in dict.fromkeys(rows) if row[1]]


def _cached(material: Material) -> Iterable[Any]:
    for frame in (material.sent, material.answers, material.generations):
        yield from frame.loc[frame["status"] == "ok", "cached_tokens"]


def verdict_server(material: Material) -> str | None:
    """The id of the server that the verdict is about; None where this run started none, or it is not known."""
    sent, known = material.sent, set(frames.servers(material.run)["id"].dropna())
    found = [one for one in sent.loc[sent["config"] == material.verdict.config, "server"].dropna() if one in known]
    return str(found[0]) if found else None


def _first_asked(material: Material) -> str:
    """``s01, no MTP``: the server whose facts were asked for, where the verdict is about one started otherwise."""
    started, found = frames.servers(material.run), verdict_server(material)
    if found is None:
        return ""
    first, mine = started.iloc[0], started[started["id"] == found].iloc[0]
    return "" if first["setting_id"] == mine["setting_id"] else redact.clean(f"{first['id']}, {first['setting']}")


def _of_verdict(material: Material) -> dict[str, tuple[str, str]]:
    """What depends on how a server was started, of the verdict's server: name → (value, source)."""
    found = verdict_server(material)
    if found is None:
        return {}
    rows = material.sent[material.sent["server"] == found]
    started, drafter = f"start of {found}", rows["drafter"].dropna()
    told = {"served models": (", ".join(rows["model"].dropna().unique()), "answers")}
    told["speculative decoding"] = ("" if not len(drafter) else "on" if drafter.iloc[0] else "off", started)
    if (header := material.telling.engines.get(found)) is not None:
        source = f"trace header of {found}"
        values = {
            "speculative decoding": "off" if header.spec_method is None else f"on, {header.spec_method}",
            "draft tokens a step": plain(header.spec_tokens),
            "pool, blocks": plain(header.pool_blocks),
            "retention interval reported": plain(header.interval),
            "batched tokens a step, at most": plain(header.max_batched_tokens),
        }
        told |= {name: (redact.clean(value), source) for name, value in values.items()}
    return {name: fact for name, fact in told.items() if fact[0]}


def label(material: Material) -> str:
    """What was investigated, in words: the target, or a trace that was brought."""
    target = redact.manifest(material.run).get("target", {})
    if material.brought:
        return f"a trace from elsewhere, of {count(len(material.telling.engines), 'engine')}"
    return str(target.get("label") or target.get("kind", ""))


def _geometry(headers: Sequence[dict[str, Any]]) -> Iterable[tuple[str, str]]:
    """Groups and blocks as the traced engines resolved them; where servers differ, which value belongs to which."""
    named: dict[str, dict[str, list[str]]] = {}
    for header in headers:
        who = f"with {redact.clean(header['spec_method'])}" if header.get("spec_method") else "without a drafter"
        values = {"KV cache groups": group_words(header)}
        for name, key in (
            ("scheduler block", "scheduler_block"),
            ("hash block", "hash_block"),
            ("shortest prompt that can hit", "min_prompt_tokens"),
        ):
            if isinstance(header.get(key), int):
                values[name] = count(header[key], "token")
        for name, value in values.items():
            owners = named.setdefault(name, {}).setdefault(value, [])
            owners += [] if who in owners else [who]
    for name, found in named.items():
        words = [value if len(found) == 1 else f"{value} {' and '.join(owners)}" for value, owners in found.items()]
        yield name, ", ".join(words)


def group_words(header: Mapping[str, Any]) -> str:
    """``5 × sliding, window 1,024, 32-token blocks; 1 × full, 64-token blocks``."""
    kinds: dict[str, int] = {}
    for group in header.get("groups") or []:
        drafter, size = bool(group.get("drafter")), int(group.get("block_size") or 0)
        label = frames.group_label(str(group.get("kind")), size, group.get("window"), drafter).replace(" · ", ", ")
        kinds[label] = kinds.get(label, 0) + 1
    return "; ".join(f"{amount} × {label}" for label, amount in kinds.items())


def servers(material: Material) -> list[dict[str, str]]:
    return [
        {
            "id": redact.clean(row.id),
            "setting": redact.clean(row.setting),
            "command": "" if not isinstance(row.command, str) else redact.clean(row.command, limit=4000),
            "ready": "" if row.start_s != row.start_s else f"ready after {row.start_s:,.0f} s",
        }
        for row in frames.servers(material.run).itertuples()
    ]


def plain(value: Any) -> str:
    """A fact's value as people read it; empty where it is unknown."""
    if isinstance(value, list):
        return ", ".join(plain(item) for item in value)
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, str):
        # Metrics give numbers and truths as text.
        return number(int(value)) if value.isascii() and value.isdigit() else _TRUTHS.get(value, value)
    return number(value) if isinstance(value, (int, float)) else str(value)
