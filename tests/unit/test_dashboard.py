"""The Grafana dashboard, in the Classic schema and as a V2 resource (what is required is from Grafana 13.2)."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from data.make_dashboard import resource, text

from prefixscope import metrics, resources

VARIABLE = {
    **dict.fromkeys(("name", "hide", "refresh", "regex"), str),
    **dict.fromkeys(("multi", "includeAll", "skipUrlSync", "allowCustomValue"), bool),
    "current": dict,
    "options": list,
}
# By kind, what its spec must have; below, what some kinds must have beside it.
SPECS: dict[str, dict[str, Any]] = {
    "Dashboard": {
        **dict.fromkeys(("annotations", "links", "tags", "variables"), list),
        **dict.fromkeys(("elements", "layout", "timeSettings"), dict),
        "cursorSync": str,
        "preload": bool,
        "title": str,
    },
    "Panel": {"id": int, "title": str, "links": list, "data": dict, "vizConfig": dict},
    "QueryGroup": {"queries": list, "transformations": list, "queryOptions": dict},
    "PanelQuery": {"refId": str, "hidden": bool, "query": dict},
    "DataQuery": {},
    "VizConfig": {"options": dict, "fieldConfig": dict},
    "DatasourceVariable": {**VARIABLE, "pluginId": str},
    "QueryVariable": {**VARIABLE, "query": dict, "sort": str},
    "GridLayout": {"items": list},
    "GridLayoutItem": {"x": int, "y": int, "width": int, "height": int, "element": dict},
}
BESIDE = {
    "Dashboard": {"apiVersion": str, "metadata": dict},
    "DataQuery": {"group": str, "version": str, "datasource": dict},
    "VizConfig": {"group": str, "version": str},
}


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a JSON file; ValueError where it names a key twice, which a parser would not tell."""
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError(f"a key is there twice: {[key for key, _ in pairs]}")
    return found


def loaded(name: str) -> dict[str, Any]:
    """A shipped dashboard."""
    found: dict[str, Any] = json.loads(resources.data_path("grafana", name).read_text(), object_pairs_hook=once)
    return found


@pytest.fixture
def classic() -> dict[str, Any]:
    return loaded("speculation.json")


@pytest.fixture
def v2() -> dict[str, Any]:
    return loaded("speculation-v2.json")


def kinds(node: Any) -> Iterator[dict[str, Any]]:
    """Every object with a kind, at any depth."""
    if isinstance(node, dict):
        if "kind" in node:
            yield node
        for value in node.values():
            yield from kinds(value)
    elif isinstance(node, list):
        for value in node:
            yield from kinds(value)


def test_both_are_one_dashboard(classic: dict[str, Any]) -> None:
    """The V2 file is what its maker makes of the Classic one."""
    shipped = resources.data_path("grafana", "speculation-v2.json").read_text()
    assert shipped == text(resource(classic))


def test_it_asks_for_metrics_that_vllm_has(classic: dict[str, Any]) -> None:
    """Every metric in it is one that prefixscope reads from vLLM, under its newest name."""
    known = {names[0] for names in (*metrics.NAMES.values(), *metrics.DRAFTING.values(), metrics.PER_POSITION)}
    queries = [target["expr"] for panel in classic["panels"] for target in panel["targets"]]
    assert len(queries) == len(classic["panels"]) == 6
    assert all("vllm:" in query for query in queries)
    assert set(re.findall(r"vllm:\w+", json.dumps(classic))) - known == {"vllm:kv_cache_usage_perc"}


def test_the_panels_have_their_own_place(classic: dict[str, Any]) -> None:
    """Ids are unique, panels stay within 24 columns and none lies on another; data sources are a variable."""
    panels = classic["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert panel["datasource"]["uid"] == "${datasource}"
    for a, b in itertools.combinations([panel["gridPos"] for panel in panels], 2):
        apart = (
            a["x"] + a["w"] <= b["x"]
            or b["x"] + b["w"] <= a["x"]
            or a["y"] + a["h"] <= b["y"]
            or b["y"] + b["h"] <= a["y"]
        )
        assert apart


def test_the_classic_one_is_of_the_last_classic_schema(classic: dict[str, Any]) -> None:
    """Version 42 is Classic's last; a variable has only fields of its schema, and a current text and value."""
    assert classic["schemaVersion"] == 42
    assert {"title", "uid", "panels", "templating", "time"} <= set(classic)
    fields = {"name", "type", "label", "datasource", "query", "current", "hide", "refresh", "regex", "multi"}
    for variable in classic["templating"]["list"]:
        assert set(variable) <= fields | {"includeAll", "allValue", "options", "sort"}
        assert {"text", "value"} <= set(variable["current"])


def test_the_v2_one_has_what_its_kinds_require(v2: dict[str, Any]) -> None:
    """Every kind is a known one with its required fields and their types; a variable has a current text and value."""
    assert v2["apiVersion"] == "dashboard.grafana.app/v2"
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", v2["metadata"]["name"])
    seen = [node for node in kinds(v2) if node["kind"] != "ElementReference"]
    assert {node["kind"] for node in seen} == set(SPECS)
    for node in seen:
        kind = node["kind"]
        wrong = [key for key, type_ in SPECS[kind].items() if type(node["spec"].get(key)) is not type_]
        wrong += [key for key, type_ in BESIDE.get(kind, {}).items() if type(node.get(key)) is not type_]
        assert (kind, wrong) == (kind, [])
        assert set(node) <= {"kind", "spec", *BESIDE.get(kind, {})}
        if kind.endswith("Variable"):
            assert {"text", "value"} <= set(node["spec"]["current"])


def test_the_v2_layout_shows_every_panel_once(v2: dict[str, Any]) -> None:
    """Each element is at one place of the layout, and each place names an element."""
    places = [item["spec"]["element"] for item in v2["spec"]["layout"]["spec"]["items"]]
    assert {place["kind"] for place in places} == {"ElementReference"}
    assert sorted(place["name"] for place in places) == sorted(v2["spec"]["elements"])
    ids = [element["spec"]["id"] for element in v2["spec"]["elements"].values()]
    assert len(set(ids)) == len(ids) == 6
