"""The Prometheus text format."""

from __future__ import annotations

import math

import pytest

from harness.wire.prometheus_text import MetricSample, parse_metrics


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("a 1", [MetricSample("a", 1.0)]),
        ("vllm:x_total 1.5e3 1700000000", [MetricSample("vllm:x_total", 1500.0)]),  # with a time
        ('a{b="c"} 2', [MetricSample("a", 2.0, {"b": "c"})]),
        ('a{b="c",d="e",} 2', [MetricSample("a", 2.0, {"b": "c", "d": "e"})]),
        ('a{b="x } y"} 2', [MetricSample("a", 2.0, {"b": "x } y"})]),
        ('a{b="q\\"u\\\\o\\nt"} 2', [MetricSample("a", 2.0, {"b": 'q"u\\o\nt'})]),
        ('h_bucket{le="+Inf"} 7', [MetricSample("h_bucket", 7.0, {"le": "+Inf"})]),
        # as OpenMetrics has exemplars, with or without labels before them
        ('a{b="c"} 2 # {t="x"} 0.4 1520879607.789', [MetricSample("a", 2.0, {"b": "c"})]),
        ('a 2 # {t="x",u="}"} 0.4', [MetricSample("a", 2.0)]),
        ('a{b="# {c}"} 2', [MetricSample("a", 2.0, {"b": "# {c}"})]),
        ('a{b="c"}2', [MetricSample("a", 2.0, {"b": "c"})]),
        ("a 1.1701968896e+010\r", [MetricSample("a", 11701968896.0)]),  # as Windows writes it
        ("a +Inf", [MetricSample("a", math.inf)]),
        ("a{} 3", [MetricSample("a", 3.0)]),
        ("# HELP a b", []),
        ("", []),
        ("<html>", []),
        ('a{b="c" 2', []),
        ("a x", []),
        ("a", []),
    ],
)
def test_lines(line: str, want: list[MetricSample]) -> None:
    """What is a sample, and what is left out."""
    assert parse_metrics(line.encode()) == want


def test_wanted_names_only() -> None:
    """Lines of other names are passed over, whatever their labels hold."""
    text = 'a 1\na_total{b="a 3"} 2\nb{c="}"} 3\n# a 4\na{x="y"} 5\n'
    assert parse_metrics(text, {"a"}) == [
        MetricSample("a", 1.0),
        MetricSample("a", 5.0, {"x": "y"}),
    ]
