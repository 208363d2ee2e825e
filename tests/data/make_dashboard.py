"""Makes data/grafana/speculation-v2.json, Grafana's V2 resource, from the Classic dashboard beside it.

``python tests/data/make_dashboard.py``; `tests/unit/test_dashboard.py` does the same and compares.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "data" / "grafana"
CLASSIC, V2 = FOLDER / "speculation.json", FOLDER / "speculation-v2.json"
CURSOR = ("Off", "Crosshair", "Tooltip")  # by Classic's number, like the three below
REFRESH = ("never", "onDashboardLoad", "onTimeRangeChanged")
HIDE = ("dontHide", "hideLabel", "hideVariable")
SORT = ("disabled", "alphabeticalAsc", "alphabeticalDesc")


def resource(classic: Mapping[str, Any]) -> dict[str, Any]:
    """A Classic dashboard as a V2 resource; ValueError for a variable that is neither a query nor a data source."""
    panels = {f"panel-{panel['id']}": panel for panel in classic["panels"]}
    spec = {
        **{key: classic[key] for key in ("title", "description", "tags", "editable", "links")},
        "preload": False,
        "cursorSync": CURSOR[classic["graphTooltip"]],
        "annotations": classic["annotations"]["list"],
        "timeSettings": {
            **classic["time"],
            "timezone": classic["timezone"],
            "autoRefresh": classic["refresh"],
            "autoRefreshIntervals": ["10s", "30s", "1m", "5m", "15m", "1h"],
            "hideTimepicker": False,
            "fiscalYearStartMonth": 0,
        },
        "variables": [_variable(variable) for variable in classic["templating"]["list"]],
        "elements": {name: _panel(panel) for name, panel in panels.items()},
        "layout": {"kind": "GridLayout", "spec": {"items": [_place(*item) for item in panels.items()]}},
    }
    return {
        "apiVersion": "dashboard.grafana.app/v2",
        "kind": "Dashboard",
        "metadata": {"name": classic["uid"]},
        "spec": spec,
    }


def text(made: Mapping[str, Any]) -> str:
    """A dashboard as its file has it."""
    return json.dumps(made, indent=1) + "\n"


def _variable(variable: Mapping[str, Any]) -> dict[str, Any]:
    spec = {
        **{key: variable[key] for key in ("name", "label", "regex", "multi", "includeAll", "options", "current")},
        "hide": HIDE[variable["hide"]],
        "refresh": REFRESH[variable["refresh"]],
        "skipUrlSync": False,
        "allowCustomValue": True,
    }
    if variable["type"] == "datasource":
        return {"kind": "DatasourceVariable", "spec": {**spec, "pluginId": variable["query"]}}
    if variable["type"] != "query":
        raise ValueError(f"a variable of type {variable['type']} is not known here")
    return {
        "kind": "QueryVariable",
        "spec": {
            **spec,
            "allValue": variable["allValue"],
            "query": _query(variable["datasource"], variable["query"]),
            "sort": SORT[variable["sort"]],
        },
    }


def _query(source: Mapping[str, str], asked: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "kind": "DataQuery",
        "group": source["type"],
        "version": "v0",
        "datasource": {"name": source["uid"]},
        "spec": dict(asked),
    }


def _panel(panel: Mapping[str, Any]) -> dict[str, Any]:
    queries = []
    for target in panel["targets"]:
        asked = {key: value for key, value in target.items() if key not in ("refId", "datasource")}
        query = _query(target["datasource"], asked)
        queries.append({"kind": "PanelQuery", "spec": {"refId": target["refId"], "hidden": False, "query": query}})
    return {
        "kind": "Panel",
        "spec": {
            **{key: panel[key] for key in ("id", "title", "description")},
            "links": [],
            "data": {
                "kind": "QueryGroup",
                "spec": {"queries": queries, "transformations": [], "queryOptions": {}},
            },
            "vizConfig": {
                "kind": "VizConfig",
                "group": panel["type"],
                "version": "",
                "spec": {key: panel[key] for key in ("options", "fieldConfig")},
            },
        },
    }


def _place(name: str, panel: Mapping[str, Any]) -> dict[str, Any]:
    at = panel["gridPos"]
    spec = {"x": at["x"], "y": at["y"], "width": at["w"], "height": at["h"]}
    return {"kind": "GridLayoutItem", "spec": {**spec, "element": {"kind": "ElementReference", "name": name}}}


if __name__ == "__main__":
    V2.write_text(text(resource(json.loads(CLASSIC.read_text()))))
