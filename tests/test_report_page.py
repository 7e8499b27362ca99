"""report.html: one file, the answer first, and no text of others in it is markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest
from report_folder import CLIENT, begin, make

from harness.report.write import write_reports
from harness.runfolder import names
from harness.runfolder.jsonfiles import read_json
from harness.runfolder.writer import RunFolder
from harness.study.results import write_results

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = (
    '</pre></style></title><script>alert(1)</script> & "quo\'ted" [bold] a|b {{ 7 * 7 }} \u2028 x'
)
LOADS = ("src", "srcset", "data", "poster", "action", "background", "href", "xlink:href")
VOID = ("meta", "br", "hr")


class Page(HTMLParser):
    """Elements in order, their attributes, and the text by the element that holds it."""

    def __init__(self, text: str) -> None:
        """Read all of it."""
        super().__init__()
        self.text = text
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note it."""
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note it; it holds nothing."""
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        """Each closes what was opened last."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note it."""
        if data.strip():
            self.words.setdefault(self.open[-1] if self.open else "", []).append(data)


def page(path: Path) -> Page:
    """The folder's report, read strictly."""
    write_reports(path)
    return Page((path / names.REPORT_HTML).read_text())


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """Of a found knee."""
    path = tmp_path_factory.mktemp("runs") / "found"
    make(path, seconds=1)
    return page(path)


def test_it_is_one_file(found: Page) -> None:
    """Nothing is loaded from anywhere: drawings are inline, links lead within them."""
    loaded = {value for name, value in found.attributes if name in LOADS}
    assert {value for value in loaded if not value.startswith("#")} == set()
    assert {"script", "link", "img", "iframe", "object", "base", "image"} & set(found.tags) == set()
    assert re.findall(r"@import|url\((?!#)", found.text) == []
    assert set(re.findall(r"https?://[\w.]+", found.text)) == {
        "http://127.0.0.1", "http://www.w3.org",  # the target in words, and SVG's name spaces
    }  # fmt: skip


def test_the_answer_comes_first(found: Page) -> None:
    """A badge, a headline, then cards, drawings and the table; no id twice, none missing."""
    assert found.words["span"][0] == "knee found"
    assert found.words["h1"][0].startswith("p95 TTFT stays under 500 ms")
    assert found.tags.index("h1") < found.tags.index("ul") < found.tags.index("svg")
    assert (found.tags.count("svg"), found.tags.count("tr")) == (6, 43)
    ids = [value for name, value in found.attributes if name == "id"]
    linked = set(re.findall(r"(?:url\(|href=\")#([^\")]+)", found.text))
    assert (len(ids) - len(set(ids)), linked - set(ids)) == (0, set())


def test_hostile_text_is_text(tmp_path: Path, found: Page) -> None:
    """Names, a step's reason, the run's, a verdict: shown to the letter, and no element more."""
    path = tmp_path / "run"
    make(path, seconds=1, said=HOSTILE, fail_above=4)
    knee = read_json(path / names.KNEE) or {}
    knee |= {"status": HOSTILE, "invalid_reason": HOSTILE, "client": CLIENT | {"cpu_s": HOSTILE}}
    knee["verdict"] |= {"evidence": [HOSTILE], "knobs": [HOSTILE], "sentence": HOSTILE}
    knee["steps"][0]["decision"] = HOSTILE
    RunFolder(path).write_json(names.KNEE, knee)
    hostile = page(path)
    assert set(hostile.tags) <= set(found.tags)
    assert "<script" not in hostile.text
    said = " ".join(text for words in hostile.words.values() for text in words)
    assert said.count("<script>alert(1)</script>") >= 8
    assert said.count("{{ 7 * 7 }}") == said.count("<script>alert(1)</script>")


MISSING = {
    "run.json only": (begin, ["No GPU was read", "The server showed no metrics"]),
    "torn records": (
        lambda path: make(path, seconds=1, levels=(2, 4), status=""),
        ["bytes of an unfinished last record were cut off", "No GPU was read"],
    ),
}


@pytest.mark.parametrize("case", MISSING)
def test_what_is_missing_is_said(case: str, tmp_path: Path) -> None:
    """An interrupted run's page is whole and lists what it does not know."""
    write, want = MISSING[case]
    path = tmp_path / "run"
    write(path)
    for file in names.record_files(path):
        file.write_bytes(file.read_bytes()[:-7])
    write_results(path)
    told = page(path)
    assert (told.words["span"][0], told.open) == ("interrupted", [])
    assert [text for text in want if not any(text in line for line in told.words["li"])] == []


def test_cards_leave_out_what_is_not_known(tmp_path: Path) -> None:
    """A knee without an interval has none in its card."""
    path = tmp_path / "run"
    make(path, seconds=1)
    knee = read_json(path / names.KNEE) or {}
    knee["knee"]["ci95"] = knee["power"]["ci95"] = None
    RunFolder(path).write_json(names.KNEE, knee)
    told = page(path)
    assert [line for line in told.words["small"] + told.words["h1"] if "nan" in line] == []
