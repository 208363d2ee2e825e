"""Prompts of the caller's own, by role: one JSON object a line, ``{"role": "worker", "messages": […]}``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prefixscope.errors import RunError
from prefixscope.prompts import Message

FORM = '{"role": "worker", "messages": [{"role": "user", "content": "…"}]}'


def read_roles(path: Path | str) -> dict[str, list[tuple[Message, ...]]]:
    """Role → its prompts, in file order. Their text never gets into a run: rows hold a digest.

    Raises
    ------
    RunError
        for a file that can't be read, or a line of another form, by its number.
    """
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise RunError(f"the prompts in {path} can't be read: {error}", remedy=f"one object a line: {FORM}") from error
    found: dict[str, list[tuple[Message, ...]]] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip():
            role, messages = _prompt(line)
            if not role or not messages:
                raise RunError(f"{path}, line {number} is no prompt of a role", remedy=f"one object a line: {FORM}")
            found.setdefault(role, []).append(messages)
    if not found:
        raise RunError(f"{path} holds no prompt", remedy=f"one object a line: {FORM}")
    return found


def _prompt(line: str) -> tuple[str, tuple[Message, ...]]:
    try:
        value = json.loads(line)
    except ValueError:
        return "", ()
    given: Any = value.get("messages") if isinstance(value, dict) else None
    if not isinstance(given, list) or not isinstance(value.get("role"), str):
        return "", ()
    right = all(
        isinstance(one, dict) and isinstance(one.get("role"), str) and isinstance(one.get("content"), str)
        for one in given
    )
    return value["role"], tuple({"role": one["role"], "content": one["content"]} for one in given) if right else ()
