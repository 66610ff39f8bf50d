"""A report is one page that loads nothing, runs nothing and shows whatever it was given as text."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from tests.support.bench_records import FAILED, ONE_TOKEN, RECORDS, THREE_TOKENS, UNFINISHED
from twinpool.bench.metrics import Effort, measure
from twinpool.bench.records import Record
from twinpool.bench.report import Part, bars, histograms, html, parts_of

HOSTILE = "<script>alert(1)</script>\"'&"


class Page(HTMLParser):
    """Which tags it has, with their attributes, and all its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(*records: Record, words: str = "words") -> Page:
    metrics = measure(records, Effort(8.0, 0.1), (50,), {})
    return Page(html(words, words, {"label": words, "dataset_path": words}, metrics, records))


def test_whatever_is_put_in_stays_text() -> None:
    hostile = Record(0.0, 0.0, 0.0, [], 1.0, error=HOSTILE)
    page = page_of(hostile, words=HOSTILE)
    assert "script" not in {tag for tag, _ in page.tags}
    # Title, heading, result and two settings; the error, in the timeline and in the table.
    assert page.text.count(HOSTILE) == 7


def test_nothing_is_loaded() -> None:
    page = page_of(*RECORDS)
    names = {name for _, attributes in page.tags for name in attributes}
    assert not names & {"src", "href", "xlink:href", "onload", "onclick"}
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object"}
    assert not re.search(r"url\(|@import|https?:", html("t", "l", {}, measure((), Effort(1, 0), (), {}), ()))


def test_it_has_every_latency_phase_and_request() -> None:
    page = page_of(*RECORDS)
    labels = [attributes["aria-label"] for tag, attributes in page.tags if tag == "svg"]
    assert labels == [
        *(f"Distribution of {name}" for name in ("TTFT", "TPOT", "ITL", "E2EL")),
        "Output tokens a second over time",
        "Timeline of requests",
    ]
    assert (
        "request 1: 3 tokens; waiting 1.000 s, queue 0.500 s, prefill 0.500 s, handoff 1.000 s" in page.text
    )
    assert f"request 3: {FAILED.error}; failed 0.500 s" in page.text


def test_phases_are_the_servers_or_what_the_client_saw() -> None:
    assert list(parts_of(THREE_TOKENS)) == [
        Part("waiting", 0.0, 1.0),
        Part("queue", 1.0, 1.5),
        Part("prefill", 1.5, 2.0),
        Part("handoff", 2.0, 3.0),
        Part("decode", 3.0, 5.0),
    ]
    assert list(parts_of(ONE_TOKEN)) == [
        Part("waiting", 2.0, 2.5),
        Part("prefill", 2.5, 4.5),
        Part("decode", 4.5, 4.5),
    ]
    assert list(parts_of(FAILED)) == [Part("waiting", 3.0, 3.0), Part("failed", 3.0, 3.5)]
    assert list(parts_of(UNFINISHED)) == []


def test_a_histogram_counts_every_value_once() -> None:
    for each in histograms([THREE_TOKENS] * 99 + [ONE_TOKEN]):
        values = {"TTFT": 100, "TPOT": 99, "ITL": 198, "E2EL": 100}[each.name]
        assert sum(each.counts) + each.beyond == values
    assert next(histograms([THREE_TOKENS] * 999 + [ONE_TOKEN])).beyond == 1


@pytest.mark.parametrize(("count", "shown"), [(0, 0), (1000, 1000), (1001, 501), (5000, 1000)])
def test_a_timeline_has_a_bounded_number_of_rows(count: int, shown: int) -> None:
    assert len(list(bars([THREE_TOKENS] * count))) == shown


def test_a_run_of_nothing_has_a_report_too() -> None:
    assert "Nothing was measured." in page_of(Record(0.0)).text
