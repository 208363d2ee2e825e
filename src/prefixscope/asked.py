"""What may be asked of a stage: an odd value is refused in words before any server starts, in a dry run too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prefixscope.errors import RunError
from prefixscope.prompts import SHAPES
from prefixscope.setting import interval_label, parse_interval

MOST_SENDS = 2_000
"""Requests of one stage; at a second or two each, more is a mistyped number rather than a wish."""

MOST_INTERVALS = 40
"""Each one starts a server."""

MOST_TOKENS = 10_000_000
CONFIGURATIONS = ("no_mtp", "mtp", "mtp_lora", "mtp_lora_interval")
DTYPES = ("float32", "bfloat16", "float16")

_SENDS: Mapping[str, Callable[[Mapping[str, Any]], int]] = {
    # Both served names count: whether there is a second one is known only once a server answers.
    "baseline": lambda v: 6 * len(v.get("lengths", ())) * len(v.get("configurations", CONFIGURATIONS)),
    "sweep": lambda v: 3 * len(v.get("lengths", ())) * len(v.get("intervals", ())),
    "equality": lambda v: 8 * v.get("documents", 0),
    "speculation": lambda v: 2 * len(v.get("shapes", ())) * v.get("documents", 0) * v.get("repeats", 0),
}


def check(stage: str, values: Mapping[str, Any]) -> None:
    """Refuse the values of a stage's parameters that can't be meant; what is not named is not looked at.

    Raises
    ------
    RunError
        for the first such value: which one, what was given, and one that would do.
    """
    for name, value in values.items():
        rule = _RULES.get(name)
        problem = rule(value) if rule else ""
        if problem:
            example = _EXAMPLES[name]
            raise RunError(
                f"{stage}.{name}={_shown(value)}: {problem}",
                remedy=f"for example -p {stage}.{name}={example}; in a notebook: {name} = {_literal(example)}",
            )
    sends = _SENDS[stage](values) if stage in _SENDS else 0
    if sends > MOST_SENDS:
        given = ", ".join(f"{name}={_short(values[name])}" for name in _COUNTING if name in values)
        raise RunError(
            f"{stage} would send {sends:,} requests ({given}), and a stage sends at most {MOST_SENDS:,}",
            cause="a mistyped number, or lists that multiply",
            remedy="ask for less, or split it over several runs",
        )


def _lengths(value: Any) -> str:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return "give a list of one or more positive whole numbers of tokens"
    return next((f"{one!r}: {why}" for one in value if (why := _positive(one, MOST_TOKENS))), "")


def _intervals(value: Any) -> str:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return "give a list of intervals"
    for one in value:
        try:
            parse_interval(one)
        except ValueError as error:
            return str(error)
    if len({interval_label(parse_interval(one)) for one in value}) > MOST_INTERVALS:
        return f"each interval starts a server, and a sweep starts at most {MOST_INTERVALS}"
    return ""


def _configurations(value: Any) -> str:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return "give a list of configurations"
    unknown = [one for one in value if one not in CONFIGURATIONS]
    if unknown:
        return f"unknown configuration {unknown[0]!r}; use some of {', '.join(CONFIGURATIONS)}"
    return "" if len(set(value)) == len(value) else "name each configuration once"


def _positive(value: Any, most: int) -> str:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        return "give a positive whole number, such as 1000"
    return f"give at most {most:,}" if value > most else ""


def _shapes(value: Any) -> str:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return f"give a list of some of {', '.join(SHAPES)}, or of files of your own prompts: FILE.jsonl"
    unknown = [one for one in value if one not in SHAPES and not str(one).endswith(".jsonl")]
    own = f"use some of {', '.join(SHAPES)}, or a file of your own prompts, FILE.jsonl"
    return f"unknown prompt shape {unknown[0]!r}; {own}" if unknown else ""


def _load(value: Any) -> str:
    numbers = isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 3
    if not numbers or not all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in value):
        return "give three numbers: prompt tokens, answer tokens, and the share of prompts that were sent before"
    fits = value[0] >= 1 and value[1] >= 1 and 0 <= value[2] <= 1
    return "" if fits else f"no load has a reuse of {value[2]} with such lengths: positive ones, and a share of 0 to 1"


def _url(value: Any) -> str:
    whole = isinstance(value, str) and (not value or value.startswith(("http://", "https://")))
    return "" if whole else "give a second server's URL, or nothing"


def _natural(value: Any) -> str:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return "" if whole and value >= 0 else "give 0 or a positive whole number"


def _there(value: Any) -> str:
    if not isinstance(value, str):
        return "give a path, or nothing"
    return "" if not value or Path(str(value)).expanduser().exists() else "no file or folder of that name"


def _literal(example: str) -> str:
    """The example of a command line as Python has it."""
    bare = example.strip("'")
    return bare if bare[0] in "[0123456789TF" else f'"{bare}"'


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else repr(value)


def _short(value: Any) -> str:
    return f"{len(value):,} of them" if isinstance(value, Sequence) and not isinstance(value, str) else f"{value:,}"


_COUNTING = ("lengths", "intervals", "configurations", "shapes", "documents", "repeats")
_RULES: Mapping[str, Callable[[Any], str]] = {
    "lengths": _lengths,
    "intervals": _intervals,
    "configurations": _configurations,
    "documents": lambda value: _positive(value, MOST_TOKENS),
    "tokens": lambda value: _positive(value, MOST_TOKENS),
    "answer_tokens": lambda value: _positive(value, MOST_TOKENS),
    "workaround": _natural,
    "seed": _natural,
    "dtype": lambda value: "" if value in DTYPES else f"use one of {', '.join(DTYPES)}",
    "trace": _there,
    "shapes": _shapes,
    "repeats": lambda value: _positive(value, MOST_SENDS),
    "load": _load,
    "other": _url,
    "outcomes_csv": _there,
    "include_text": lambda value: "" if isinstance(value, bool) else "give True or False",
}
_EXAMPLES: Mapping[str, str] = {
    "lengths": "[1600,6446]",
    "intervals": "'[0,1024,\"dense\"]'",
    "configurations": '\'["no_mtp","mtp"]\'',
    "documents": "10",
    "tokens": "2400",
    "answer_tokens": "32",
    "workaround": "1024",
    "seed": "1",
    "dtype": "float32",
    "trace": "trace-1234.jsonl",
    "shapes": '\'["prose","code"]\'',
    "repeats": "2",
    "load": "[6446,200,0.7]",
    "other": "http://second:8000",
    "outcomes_csv": "outcomes.csv",
    "include_text": "True",
}
