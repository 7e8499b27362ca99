"""What tests of orchestration accept of a busy machine: 5 or 6 with the product's sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from study_process import TOO_BUSY, check_code

TOP = Path(__file__).parents[1]
SOURCES = [path.read_text() for path in sorted((TOP / "harness").rglob("*.py"))]
# with sentences in one piece that stand in several literals
CODE = "".join(" ".join(text.split()) for text in SOURCES).replace('" "', "").replace('" f"', "")
OTHER = "the server failed under load"


@pytest.mark.parametrize("sentence", TOO_BUSY)
def test_the_product_says_it(sentence: str) -> None:
    """Each stands in its code; another one would accept a failure that nobody explains."""
    assert sentence in CODE


@pytest.mark.parametrize(
    ("code", "said", "wanted", "accepted"),
    [
        (0, "", (0,), True),
        (99, "", (99,), True),
        (0, "", (99,), False),
        *[(code, "", (0,), False) for code in (1, 2, 3, 4, 5, 6, 99, 130, -9)],
        *[(code, OTHER, (0,), False) for code in (1, 2, 3, 4, 5, 6, 99, 130, -9)],
        *[(code, TOO_BUSY[0], (0,), False) for code in (1, 2, 3, 4, 99, 130, -9)],
        *[(5, f"4 users: {sentence} as they should", (0,), True) for sentence in TOO_BUSY],
        *[(6, f"2 levels left out: {sentence}", (0, 99), True) for sentence in TOO_BUSY],
        (5, TOO_BUSY[1].replace(" ", "\n    ", 2), (0,), True),  # wrapped by a terminal
    ],
)
def test_which_codes_are_accepted(
    code: int, said: str, wanted: tuple[int, ...], accepted: bool
) -> None:
    """What was wanted, or too busy with a reason; 1, 99 and a signal never."""
    if accepted:
        check_code(code, said, *wanted)
    else:
        with pytest.raises(AssertionError, match="exit code"):
            check_code(code, said, *wanted)
