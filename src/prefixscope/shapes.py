"""Prompt shapes: endless, seeded texts of five kinds, since how often a drafter is right depends on what it reads.

Each stream yields pieces that follow from the seed alone; :mod:`prefixscope.prompts` cuts them to a token count.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator

Stream = Callable[[int], Iterator[str]]
"""Seed → an endless, reproducible stream of text."""

_NAMES = "block|window|hit|salt|group|pool|token|prompt|draft|turn"
_VERBS = "read|count|keep|drop|store|match|merge|check"
_SEVERITIES = "low|medium|high"
_PATHS = "/etc/ssh/sshd_config|/etc/audit/auditd.conf|/etc/login.defs|/etc/pam.d/system-auth|/etc/sysctl.conf"


def pick(draw: random.Random, options: str) -> str:
    """One of the alternatives between the bars."""
    # random.Random.random() is documented to repeat across Python versions; choice() is not.
    entries = options.split("|")
    return entries[int(draw.random() * len(entries))]


def code(seed: int) -> Iterator[str]:
    """Small Python functions, one after another."""
    draw = random.Random(seed)
    while True:
        verb, name, other = pick(draw, _VERBS), pick(draw, _NAMES), pick(draw, _NAMES)
        limit = int(draw.random() * 900) + 100
        yield (
            f"def {verb}_{name}({other}s, limit={limit}):\n"
            f"    found = []\n"
            f"    for {other} in {other}s:\n"
            f"        if {other}.size < limit:\n"
            f"            found.append({other}.{name})\n"
            f"    return found\n\n\n"
        )


def xml(seed: int) -> Iterator[str]:
    """Rules of a security baseline, as XML elements."""
    draw = random.Random(seed)
    while True:
        number = int(draw.random() * 90_000) + 10_000
        yield (
            f'<Rule id="SV-{number}r1_rule" severity="{pick(draw, _SEVERITIES)}">\n'
            f"  <title>The system must {pick(draw, _VERBS)} each {pick(draw, _NAMES)}</title>\n"
            f'  <check system="C-{number}"><path>{pick(draw, _PATHS)}</path></check>\n'
            f"</Rule>\n"
        )


def tool_arguments(seed: int) -> Iterator[str]:
    """Calls of tools with JSON arguments, one a line."""
    draw = random.Random(seed)
    while True:
        call = {
            "name": f"{pick(draw, _VERBS)}_{pick(draw, _NAMES)}",
            "arguments": {
                "path": pick(draw, _PATHS),
                "line": int(draw.random() * 400) + 1,
                "value": pick(draw, _NAMES),
                "dry_run": draw.random() < 0.5,
            },
        }
        yield json.dumps(call) + "\n"


def repetition(seed: int) -> Iterator[str]:
    """One line again and again: what a drafter finds easiest."""
    draw = random.Random(seed)
    line = f"{pick(draw, _NAMES)} {int(draw.random() * 900) + 100} {pick(draw, _VERBS)}s the {pick(draw, _NAMES)}.\n"
    while True:
        yield line
