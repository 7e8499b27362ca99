"""Pages from plain data, by the templates beside this file."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from harness.charts.embed import figure
from harness.metrics.numbers import as_sentence, format_number


def render(name: str, **data: Any) -> str:
    """A template with these values, as HTML or, by its name, text; a missing value is an error."""
    is_text = not name.endswith(".html.j2")
    pages = Environment(
        loader=PackageLoader("harness.report"),
        undefined=StrictUndefined,
        autoescape=not is_text,  # noqa: S701 - Markdown
        trim_blocks=is_text,
        lstrip_blocks=is_text,
        keep_trailing_newline=is_text,
    )
    pages.filters["sentence"] = as_sentence
    pages.filters["number"] = format_number
    pages.filters["chart"] = figure
    return pages.get_template(name).render(**data)
