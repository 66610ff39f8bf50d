"""Builds Grafana dashboards: rows of panels, laid out left to right, as the JSON that Grafana imports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scripts.dashboards.promql import increase

SCHEMA_VERSION = 39
"""Grafana 10.4 and 11 write it; newer ones migrate it when they load it."""
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
GRID_COLUMNS = 24
STAT_HEIGHT = 4
GRAPH_HEIGHT = 8


@dataclass(frozen=True, slots=True)
class Query:
    """expr: PromQL. legend: Grafana's template of a series' name."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. unit: Grafana's name of it. stacked: the series sum to something that matters.

    orange and red: from where on a stat is worrying; falling: if it is below them.
    """

    title: str
    unit: str
    queries: tuple[Query, ...]
    text: str = ""
    width: int = 8
    stat: bool = False
    stacked: bool = False
    orange: float | None = None
    red: float | None = None
    falling: bool = False


def stat(title: str, unit: str, expr: str, text: str, **limits: Any) -> Panel:
    """A number now, none where there is nothing to say now. limits: as `Panel`'s orange, red, falling."""
    return Panel(title, unit, (Query(expr),), text, width=3, stat=True, **limits)


def graph(title: str, unit: str, text: str, *queries: Query, width: int = 8, stacked: bool = False) -> Panel:
    """Series over time."""
    return Panel(title, unit, queries, text, width=width, stacked=stacked)


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a title."""

    title: str
    panels: tuple[Panel, ...]


def dashboard(uid: str, title: str, text: str, rows: Sequence[Row], *choices: str) -> dict[str, Any]:
    """A whole dashboard. choices: labels of workers' gauges to choose values of, beside job and router."""
    return {
        "uid": uid,
        "title": title,
        "description": text,
        "tags": ["twinpool"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": [_link_to_others()],
        "annotations": {"list": [_restarts()]},
        "templating": {"list": [_datasource(), *_router_choices(), *map(_choice, choices)]},
        "panels": _laid_out(rows),
    }


def _laid_out(rows: Sequence[Row]) -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": y, "w": GRID_COLUMNS, "h": 1},
            }
        )
        y += 1
        x = 0
        for panel in row.panels:
            height = STAT_HEIGHT if panel.stat else GRAPH_HEIGHT
            if x + panel.width > GRID_COLUMNS:
                x, y = 0, y + height
            position = {"x": x, "y": y, "w": panel.width, "h": height}
            panels.append({"id": len(panels) + 1, "gridPos": position, **_panel(panel)})
            x += panel.width
        y += STAT_HEIGHT if row.panels[-1].stat else GRAPH_HEIGHT
    return panels


def _panel(panel: Panel) -> dict[str, Any]:
    return {
        "type": "stat" if panel.stat else "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": DATASOURCE,
        "targets": [_target(index, query, panel.stat) for index, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _stat_options() if panel.stat else _graph_options(),
    }


def _target(index: int, query: Query, instant: bool) -> dict[str, Any]:
    """instant: ask for the value now; the last one of a range may be as old as the range is long."""
    return {
        "refId": chr(ord("A") + index),
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        "instant": instant,
        "range": not instant,
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "red" if panel.falling else "green", "value": None}]
    limits = ((panel.orange, "orange"), (panel.red, "red"))
    if panel.falling:
        limits = ((panel.red, "orange"), (panel.orange, "green"))
    steps += [{"color": color, "value": value} for value, color in limits if value is not None]
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "min": 0,
        "noValue": "–",
        "thresholds": {"mode": "absolute", "steps": steps},
    }
    if not panel.stat:
        defaults["color"] = {"mode": "palette-classic"}
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 60 if panel.stacked else 10,
            "showPoints": "never",
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        }
    return defaults


def _stat_options() -> dict[str, Any]:
    return {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "none",
        "textMode": "value",
        "justifyMode": "auto",
        "orientation": "auto",
    }


def _graph_options() -> dict[str, Any]:
    return {
        "legend": {
            "showLegend": True,
            "displayMode": "table",
            "placement": "bottom",
            "calcs": ["lastNotNull", "max"],
        },
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _router_choices() -> list[dict[str, Any]]:
    job = _variable("job", "Job", "label_values(twinpool_build_info, job)")
    instance = _variable("instance", "Router", 'label_values(twinpool_build_info{job="$job"}, instance)')
    return [job, instance | _several()]


def _choice(label: str) -> dict[str, Any]:
    query = f'label_values(twinpool_num_requests_running{{job="$job",instance=~"$instance"}}, {label})'
    return _variable(label, label.capitalize(), query) | _several()


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
    }


def _several() -> dict[str, Any]:
    every = {"selected": True, "text": ["All"], "value": ["$__all"]}
    return {"multi": True, "includeAll": True, "current": every}


def _link_to_others() -> dict[str, Any]:
    return {
        "title": "Twinpool",
        "type": "dashboards",
        "tags": ["twinpool"],
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
    }


def _restarts() -> dict[str, Any]:
    """Its window is fixed, as Grafana has no rate interval for annotations: enough for a scrape a minute."""
    replaced = increase("worker_restarts_total", "5m", "pool,reason")
    return {
        "name": "Workers replaced",
        "datasource": DATASOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": f"{replaced} > 0",
        "titleFormat": "a {{pool}} worker was replaced: {{reason}}",
    }
