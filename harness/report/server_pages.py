"""Pages about servers that we started: from plain data, by templates."""

from __future__ import annotations

from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

ADVICE: Final = {  # the longest part of a start -> what shortens it
    "process start and imports": "keep the image and Python's bytecode on a local disk",
    "weights": "keep the weight files in the page cache or on a faster disk",
    "compile": "keep vLLM's compile cache (VLLM_CACHE_ROOT) from one start to the next",
    "warm-up": "keep the caches of kernels that are compiled then (~/.triton, ~/.cache/flashinfer)",
    "graph capture": "capture fewer batch sizes, or none with --enforce-eager, and measure ITL",
}


def server_page(name: str, **data: Any) -> str:
    """Render `first_token_latency.md` or `kv_cache_scaling_notes.md`."""
    pages = Environment(
        loader=PackageLoader("harness.report"), undefined=StrictUndefined, autoescape=False,  # noqa: S701 - Markdown
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    return pages.get_template(f"{name}.j2").render(advice=ADVICE, **data)
