"""Context: what is served, how, on what, in which configurations, and how it was measured."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

import pandas as pd

from prefixscope import collect_env, frames, redact
from prefixscope.flags import Flags
from prefixscope.frames.served import BY_SERVER
from prefixscope.material import facts, label, verdict_server
from prefixscope.notes.account import Account
from prefixscope.notes.markdown import Markdown, command_lines, table, without_variables
from prefixscope.provenance import NO_GPU
from prefixscope.quantities import count, number
from prefixscope.sections.record import engines

_MODELS, _DRAFTER = "served models", "speculative decoding"
MOST_VARIABLES = 4
_MACHINE = {
    "GPU": "GPU {}", "GPUs": "GPUs {}", "driver": "driver {}", "CUDA": "CUDA {}", "CPU": "{}", "CPUs": "{} CPUs",
    "memory, GiB": "{} GiB of memory", "memory, GB": "{} GB of memory", "operating system": "{}", "system": "{}",
}  # fmt: skip
_CACHE = {
    "KV cache dtype": "KV cache dtype {}", "pool, blocks": "a pool of {} blocks",
    "scheduler block": "a scheduler block of {}", "retention interval reported": "retention interval {}",
}  # fmt: skip


_RESENT = "This run was not asked for hit lengths; those told here are of the long prompt that weighs what hits save: "


def known(told: Account) -> dict[str, str]:
    """What the report's table of facts says: name → value."""
    return {name: value for name, value, _ in facts(told.material)}


def served(told: Account) -> list[str]:
    """What is served, how, and on what, in sentences."""
    fact, header = known(told), told.main.header if told.main is not None else None
    what = fact.get(_MODELS) or label(told.material) or "a server"
    engine = f"vLLM {told.version}" if told.version else "an engine of unknown release"
    lora = f", with the LoRA adapter {fact['LoRA names']}" if fact.get("LoRA names") else ""
    what = f"A{what[1:]}" if what.startswith("a ") else what
    lines = [f"{what}{' served by' if fact.get(_MODELS) else ','} {engine}{lora}."]
    drafter = _drafter(told)
    if header is not None and header.spec_method:
        drafts = count(header.spec_tokens or 0, "token")
        lines.append(f"Speculative decoding: {header.spec_method}{drafter}, {drafts} a draft.")
    elif fact.get(_DRAFTER):
        lines.append(f"Speculative decoding: {fact[_DRAFTER]}{drafter}.")
    caching = {"yes": "Prefix caching is on", "no": "Prefix caching is off"}.get(fact.get("prefix caching", ""), "")
    cache = ", ".join(words.format(fact[name]) for name, words in _CACHE.items() if fact.get(name))
    if caching or cache:
        lines.append(f"{': '.join(part for part in (caching or 'KV cache', cache) if part)}.")
    return [*lines, _machine(told, fact)]


def _machine(told: Account, fact: Mapping[str, str]) -> str:
    """The machine that served, where this run started the server on it; else what asked or told from elsewhere."""
    known = [(fact[name], words) for name, words in _MACHINE.items() if fact.get(name)]
    known.sort(key=lambda one: one[0].startswith("no "))
    machine = ", ".join(value if value.startswith("no ") else words.format(value) for value, words in known)
    if told.material.brought:
        return "On which machine it was recorded is not known."
    if not machine:
        return "On which machine it was measured was not recorded."
    if (told.material.run.get("target") or {}).get("kind") == "attached":
        return f"Asked from a machine with {machine}; the server's own machine is not known."
    return f"Measured on {machine}."


def _drafter(told: Account) -> str:
    """`` with the drafter NAME``, as the verdict's server was started; empty where no command says."""
    for _, command in commands(told)[:1]:
        try:
            given = Flags(shlex.split(command)).value("--speculative-config")
            model = json.loads(given or "{}").get("model")
        except (ValueError, AttributeError):
            return ""
        if isinstance(model, str) and model:
            return f" with the drafter {'/'.join(redact.clean(model).split('/')[-2:])}"
    return ""


def on_gpu(told: Account) -> bool | None:
    """Whether a GPU was recorded; None where nothing of the machine was, or the server may run on another one."""
    if (told.material.run.get("target") or {}).get("kind") == "attached":
        return None
    environment = redact.environment(told.material.run)
    seen = [environment[name] for name in ("gpu", "gpus", "cuda") if name in environment]
    return any(value != NO_GPU for value in seen) if environment else None


def configurations(told: Account) -> Markdown | None:
    """What was compared: one row per configuration; None where nothing was sent."""
    hits = told.material.hits
    if not len(hits):
        return None
    sent = told.material.sent["config"].value_counts()
    rows = [
        (
            str(row.config),
            "as it was found" if _true(row.as_served) else _yes(row.drafter),
            "as it was found" if _true(row.as_served) else _yes(row.lora),
            "as it was found" if _true(row.as_served) else _interval(row),
            number(sent.get(row.config, 0)),
        )
        for row in hits.drop_duplicates("config").itertuples()
    ]
    columns = ("configuration", "drafter", "adapter loaded", "retention interval", "requests")
    return table(columns, rows, numeric=("requests",))


def servers(told: Account) -> Markdown | None:
    """One row per traced server of the run, with what differs between them; None of fewer than two."""
    found, mine = engines(told.material), verdict_server(told.material)
    if found is None:
        return None
    apart = [n for n in range(len(found.columns)) if n < 2 or len({row[n] for row in found.rows}) > 1]
    what = "reported here" if told.faulty else "of the verdict"
    rows = [tuple(f"{row[n]} ({what})" if n == 1 and row[0] == mine else row[n] for n in apart) for row in found.rows]
    return table([found.columns[n] for n in apart], rows, numeric=found.numeric)


def method(told: Account) -> list[str]:
    """How it was measured, in sentences."""
    sent = told.material.sent
    if not len(sent):
        if told.material.brought:
            return [
                f"{told.material.telling.why} Nothing was sent: the trace is all that is known, and what the prompts "
                "were meant to share is not."
            ]
        none = "No request of a measuring stage is in this run, so there is no hit length to tell."
        return [told.material.unasked or none]
    lengths = sent["tokens"].dropna()
    repeats = sent[sent["send"] == "repeat"]
    times = int(repeats["index"].max()) if len(repeats) else 1
    span = f" of {number(lengths.min())} to {number(lengths.max())} tokens" if lengths.nunique() > 1 else ""
    span = span or (f" of {number(lengths.iloc[0])} tokens" if len(lengths) else "")
    often = f"up to {number(times)} times" if times > 1 else "once"
    answers = sent["completion_tokens"].dropna()
    short = "one-token answers" if len(answers) and answers.max() <= 1 else "short answers"
    failed = int((sent["status"] == "failed").sum())
    why = _RESENT if told.material.resent else ""
    lines = [
        f"{why}{count(len(sent), 'request')}, one at a time: prompts{span}, each sent {often} "
        f"under a salt of its own, so that its first send is cold; greedy decoding, {short}. A hit length is "
        "`cached_tokens` of one answer's `usage`."
    ]
    each = told.material.hits[(told.material.hits["send"] == "repeat") & (told.material.hits["index"] == 2)]["count"]
    if len(each) and each.max() <= 1:
        lines.append(
            "Each cell was measured once; the scheduler that decides on hits is deterministic on an idle server."
        )
    if told.material.hits["config"].str.contains(" · ", regex=False).any():
        lines.append("Behind a configuration's dot stands the served name that was asked, where a server had several.")
    if failed:
        first = [text for text in sent.loc[sent["status"] == "failed", "error"].dropna() if text.strip()]
        why = f"the first: {first[0].strip().splitlines()[0]}" if first else "why was not recorded"
        lines.append(f"{count(failed, 'request')} failed; {why}.")
    return lines


def commands(told: Account) -> list[tuple[str, str]]:
    """How the verdict's server and the one with the remedy were started: (which, command); shortened, keys masked."""
    found = frames.servers(told.material.run)
    wanted = {told.verdict.config: "with the fault" if told.faulty else "that the verdict is about"}
    wanted |= {told.verdict.remedy_config: "with the remedy"} if told.verdict.remedy_config else {}
    made = []
    for config, what in wanted.items():
        names = told.material.hits.loc[told.material.hits["config"] == config, "setting_id"]
        row = found[found["setting_id"].isin(names) & found["command"].notna()].head(1)
        if len(row):
            made.append((f"the server {what} ({config})", _command(row.iloc[0]["command"])))
    if told.verdict.code == "not asked":
        known = found[found["command"].notna()]
        made = [(f"the server {row.setting}", _command(row.command)) for row in known.itertuples()]
    return made


def started(told: Account) -> str:
    """Which servers this run started, where none of them has a command to show."""
    ids = sorted(redact.clean(one) for one in frames.servers(told.material.run)["id"].dropna())
    if not ids:
        return "How the server was started is not known: this run started none."
    which = f"{count(len(ids), 'server')}, {ids[0]}" + (f" to {ids[-1]}" if len(ids) > 1 else "")
    return f"This run started {which}. No row says which one the verdict is about; the report lists every command."


def briefly(told: Account) -> list[tuple[str, str]]:
    """The same for a reader: without a long list of variables before it, and of the second what the first has not."""
    started = commands(told)
    if not started:
        return []
    (which, text), *others = started
    variables, program = without_variables(text)
    many = len(variables) > MOST_VARIABLES
    note = f"; {len(variables)} environment variables before it are in the report" if many else ""
    made = [(f"{which}{note}", program if many else text)]
    for other, command in others:
        mine, first = _parts(command), _parts(text)
        lines = [line for line in mine if line not in first]
        lines += [f"# without {line}" for line in first if line.split()[0] not in {one.split()[0] for one in mine}]
        made.append((f"{other}, where it differs", "\n".join(lines) or "nowhere"))
    return made


def every_command(told: Account, base: str) -> list[tuple[str, str]]:
    """How each server of the run was started: what ``base``, a command, has and it has not, and the other way round."""
    return [
        (f"{row.id}, {row.setting}", _apart(base, _command(row.command)))
        for row in frames.servers(told.material.run).itertuples()
        if isinstance(row.command, str)
    ]


def _apart(base: str, command: str) -> str:
    mine, theirs = _parts(base), _parts(command)
    lines = [f"- {line}" for line in mine if line not in theirs] + [f"+ {line}" for line in theirs if line not in mine]
    return "\n".join(lines) or "nothing"


def _parts(command: str) -> list[str]:
    """A command's flags, one a string; a port is nobody's difference."""
    lines = [line.strip().removesuffix(" \\") for line in command.splitlines()]
    return [line for line in lines if not line.startswith("--port ")]


def _command(text: Any) -> str:
    return command_lines(redact.clean(text, limit=8000))


def environment(told: Account) -> str:
    """The machine and the engine in the shape of vLLM's own collect_env."""
    titles = {"this machine": "Machine", collect_env.SOURCE: "python -m vllm.collect_env"}
    parts: dict[str, list[tuple[str, str]]] = {**{title: [] for title in titles.values()}, "vLLM": []}
    for name, value, source in facts(told.material):
        if not name.startswith(tuple(f"{one} (" for one in BY_SERVER)):  # another server's
            parts[titles.get(source, "vLLM")].append((name, value))
    width = max([len(redact.clean(name)) for values in parts.values() for name, _ in values], default=0)
    lines: list[str] = []
    for title, values in parts.items():
        rule = "=" * 30
        lines += ["", rule, f"{title:^30}".rstrip(), rule]
        lines += [f"{redact.clean(name):<{width}} : {redact.clean(value)}" for name, value in values]
        lines += [] if values else ["not recorded"]
    return "\n".join(lines).strip("\n")


def _true(value: Any) -> bool:
    return not pd.isna(value) and bool(value)


def _yes(value: Any) -> str:
    return "not known" if pd.isna(value) else "yes" if value else "no"


def _interval(row: Any) -> str:
    if pd.isna(row.interval):
        return "not known"
    return "the release's default" if row.interval == "default" else str(row.interval)
