"""The load processes' figures about themselves, made one for all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def merge(figures: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One for all processes."""
    return dict(figures[0]) if figures else {}
