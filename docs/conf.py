"""The site of these pages, by Sphinx: `make site` builds it into build/site."""  # noqa: INP001 - a script

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "vllm-harness"
author = "the vllm-harness authors"
copyright = author  # noqa: A001 - Sphinx's name

# The whole repository is the source, so that Sphinx checks a link to any page or file of it.
root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "bench/**.md",
    "lab/**.md",
    "reports/samples/**.md",
    "README.md",
    "AGENTS.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "CODE_OF_CONDUCT.md",
    "SECURITY.md",
]
exclude_patterns = ["lab/duel_words.md"]  # sentences that the duel's page is made of
extensions = ["myst_parser"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]
smartquotes = False  # or `--` of an option becomes a dash
html_theme = "furo"
html_title = "vllm-harness"
html_extra_path = ["../llms.txt"]
html_show_copyright = False
templates_path = ["templates"]
html_additional_pages = {"index": "to_the_first_page.html"}


def give_reports_titles(_app: Sphinx, page: str, text: list[str]) -> None:
    """Recorded reports begin with their answer, and Sphinx wants a title."""
    path = PurePath(page)
    if path.parts[:2] == ("reports", "samples") and not text[0].startswith("# "):
        name = path.parent.name if path.stem == "report" else path.stem
        text[0] = f"# {name}\n\n{text[0]}"


def setup(app: Sphinx) -> None:
    app.connect("source-read", give_reports_titles)
