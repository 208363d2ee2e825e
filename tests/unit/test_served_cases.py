"""Every public report about served models is held by a test, or says why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CASES: list[dict[str, Any]] = json.loads((ROOT / "data" / "cases" / "served.json").read_text(encoding="utf-8"))["cases"]
IDS = {
    "api-shape": "A01 A03 A04 A06 A07 A08",
    "metrics": "M02 M03 M04 M07 M08 M10 M11 M13",
    "launch": "L01 L02 L05",
    "ops": "O01 O03 O07 O09",
}


def test_the_table_is_whole() -> None:
    """Each case of the four kinds is there once, and no other."""
    found = {kind: " ".join(case["id"] for case in CASES if case["kind"] == kind) for kind in IDS}
    assert found == IDS
    assert sum(len(ids.split()) for ids in IDS.values()) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["id"]))
def test_each_case_has_a_test_or_a_reason(case: dict[str, Any]) -> None:
    """The named tests exist; a case without one has a reason."""
    assert bool(case["tests"]) != bool(case["reason"])
    for name in case["tests"]:
        file, _, function = name.partition("::")
        assert f"\ndef {function}(" in (ROOT / file).read_text(encoding="utf-8"), name
