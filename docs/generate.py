"""Write the pages of docs/ that are made from tables in the code: `make docs`."""  # noqa: INP001 - a script

from __future__ import annotations

from pathlib import Path

from harness.measure.metrics import METRICS

HERE = Path(__file__).parent


def metrics() -> str:
    """docs/metrics.md, from METRICS."""
    rows = [
        "# Metrics",
        "",
        "Made from `METRICS` in `harness/measure/metrics.py` by `make docs`; a test compares them.",
        "Times are integer nanoseconds inside, milliseconds in JSON, reports and on the terminal,",
        "and seconds for Prometheus. How failures, open requests, quantiles and intervals are",
        "treated stands in [design.md](design.md), under Definitions.",
        "",
        "| In SLOs and JSON | What | Unit | Prometheus |",
        "|---|---|---|---|",
    ]
    for metric in METRICS.values():
        name = f"{metric.key}_ms" if metric.unit == "ms" else metric.key
        key = f"`{metric.key}`, `{name}`" if name != metric.key else f"`{name}`"
        rows.append(f"| {key} | {metric.title} | {metric.unit} | `{metric.prometheus}` |")
    for metric in METRICS.values():
        rows += ["", f"## {metric.title}", "", metric.definition]
    return "\n".join(rows) + "\n"


PAGES = {"metrics.md": metrics}


def main() -> None:
    """Write every page."""
    for name, page in PAGES.items():
        (HERE / name).write_text(page())


if __name__ == "__main__":
    main()
