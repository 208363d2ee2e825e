"""Makes the groups in data/geometries anew from the model that each file names, by every release that is installed.

``python tests/data/make_geometries.py [NAME…]``; `tests/engine/test_grouping.py` does the same and compares.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from prefixscope.errors import ReplayError
from prefixscope.replay import Replayer, open_release
from prefixscope.replay.releases import RELEASES

FOLDER = Path(__file__).parents[2] / "data" / "geometries"
FIRST = "0.29.0"  # whose groups a file begins with


def grouped(replayer: Replayer, model: Mapping[str, Any], *, drafter: bool) -> dict[str, Any]:
    """The groups that a release makes of a preset's model, as the file has them: like neighbours counted."""
    made = replayer.group({**model, "drafter": model["drafter"] if drafter else None}).to_json()
    groups: list[dict[str, Any]] = []
    for group in made["groups"]:
        last = groups[-1] if groups else {}
        if {**last, "count": 1} == {**group, "count": 1}:
            last["count"] += 1
        else:
            groups.append({**group, "count": 1})
    return {"groups": groups, "scheduler_block": made["scheduler_block"], "hash_block": made["hash_block"]}


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two are the same geometry; a spec's field that only one of the two has does not count."""
    return (
        (one["scheduler_block"], one["hash_block"]) == (other["scheduler_block"], other["hash_block"])
        and len(one["groups"]) == len(other["groups"])
        and all(map(_same_group, one["groups"], other["groups"]))
    )


def _same_group(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    mine, theirs = one["fields"], other["fields"]
    # 0.28 has a field for how blocks lie in memory that later releases have not.
    return {**one, "fields": 0} == {**other, "fields": 0} and all(
        mine[name] == theirs[name] for name in mine if name in theirs
    )


def join(found: list[dict[str, Any]], release: str, made: Mapping[str, Any], *, drafter: bool) -> None:
    """Adds a release to the geometry that it agrees with, or adds its own."""
    for one in found:
        if one["with_drafter"] == drafter and same(one, made):
            one["releases"] = sorted([*one["releases"], release])
            return
    found.append({"releases": [release], "with_drafter": drafter, **made})


def ask(release: str, files: Mapping[str, Any]) -> list[tuple[str, bool, dict[str, Any]]]:
    """What one release makes of every file's model: name, with the drafter, groups."""
    found = []
    with open_release(release) as replayer:
        for name, file in files.items():
            for drafter in (True, False):
                try:
                    found.append((name, drafter, grouped(replayer, file["model"], drafter=drafter)))
                except ReplayError as error:
                    print(f"left out: {name}, {error}", flush=True)
    print(release, flush=True)
    return found


def main() -> None:
    wanted = sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.json"))
    files = {name: json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")) for name in wanted}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in wanted}
    releases = [FIRST, *(one for one in RELEASES if one != FIRST)]
    with ThreadPoolExecutor(max_workers=3) as together:
        for release, made in zip(releases, together.map(lambda one: ask(one, files), releases), strict=True):
            for name, drafter, groups in made:
                join(found[name], release, groups, drafter=drafter)
    for name, file in files.items():
        first, *others = found[name]
        head = {
            "about": file["about"],
            "origin": f"the shipped geometry {name}",
            "drafter_tokens": file["model"]["drafter"]["tokens"],
            **{key: file[key] for key in ("sources", "inferred", "model")},
        }
        text = {**head, **first, "variants": others}
        (FOLDER / f"{name}.json").write_text(_json(text), encoding="utf-8")


def _json(value: object) -> str:
    """Indented, with lists of plain values on one line."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    return re.sub(r"\[\s*([^\[\]{}]*?)\s*\]", lambda found: "[" + re.sub(r"\s+", " ", found[1]) + "]", text) + "\n"


if __name__ == "__main__":
    main()
