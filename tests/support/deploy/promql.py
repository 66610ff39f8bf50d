"""Finds what a PromQL expression asks for that no metric has: names, labels, values, buckets."""

from __future__ import annotations

import re
from collections.abc import Mapping

from scripts.metrics_catalogue import Family

_METRIC = re.compile(r"\b((?:twinpool[_:]|process_)[\w:]*|up(?=\{))(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")
_LEGEND = re.compile(r"\{\{(\w+)\}\}")
OF_TARGETS = {"job", "instance"}
"""Labels that Prometheus adds when it scrapes."""


def problems(expr: str, known: Mapping[str, Family], legend: str = "") -> list[str]:
    """What is wrong with an expression and its legend, in words; empty if nothing is."""
    found: list[str] = []
    labels = set(OF_TARGETS)
    for name, matchers in _METRIC.findall(expr):
        family = known.get(name)
        if family is None:
            found.append(f"there is no metric {name}")
            continue
        labels |= set(family.labels) | ({"le"} if family.buckets else set())
        for label, operator, value in _MATCHER.findall(matchers):
            found += _of_matcher(family, name, label, value.split("|") if "~" in operator else [value])
    asked = {label.strip() for group in _GROUPING.findall(expr) for label in group.split(",")} - {""}
    asked |= {*_LEGEND.findall(legend)}
    found += [f"nothing is labelled {label}" for label in sorted(asked - labels)]
    return found


def _of_matcher(family: Family, name: str, label: str, values: list[str]) -> list[str]:
    if label in OF_TARGETS:
        return []
    if label == "le" and family.buckets:
        known = family.buckets
    elif label in family.labels:
        known = family.labels[label]
    else:
        return [f"{name} has no label {label}"]
    unknown = [value for value in values if known and value not in known and "$" not in value]
    return [f"{name} has no {label} {value!r}" for value in unknown]
