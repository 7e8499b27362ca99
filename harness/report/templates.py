"""Pages from plain data, by the templates beside this file."""

from __future__ import annotations

from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from harness.report.numbers import as_sentence

ADVICE: Final = {  # the longest part of a start -> what shortens it
    "process start and imports": "keep the image and Python's bytecode on a local disk",
    "weights": "keep the weight files in the page cache or on a faster disk",
    "compile": "keep vLLM's compile cache (VLLM_CACHE_ROOT) from one start to the next",
    "warm-up": "keep the caches of kernels that are compiled then (~/.triton, ~/.cache/flashinfer)",
    "graph capture": "capture fewer batch sizes, or none with --enforce-eager, and measure ITL",
}


def server_page(name: str, **data: Any) -> str:
    """`first_token_latency.md` or `kv_cache_scaling_notes.md`, of servers that we started."""
    return render(f"{name}.j2", text=True, advice=ADVICE, **data)


def render(name: str, *, text: bool = False, **data: Any) -> str:
    """A template with these values, as HTML or as text; a missing value is an error."""
    pages = Environment(
        loader=PackageLoader("harness.report"), undefined=StrictUndefined, autoescape=not text,  # noqa: S701 - Markdown
        trim_blocks=text, lstrip_blocks=text, keep_trailing_newline=text,
    )  # fmt: skip
    pages.filters["sentence"] = as_sentence
    return pages.get_template(name).render(**data)


def style_sheet() -> str:
    """The report's, for other pages."""
    source, _, _ = PackageLoader("harness.report").get_source(Environment(), "report.html.j2")  # noqa: S701 - read, not rendered
    return source.partition("<style>")[2].partition("</style>")[0]
