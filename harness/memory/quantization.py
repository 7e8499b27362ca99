"""How many bytes a matrix takes in a quantized model, scales and zeros included."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

HALF_BITS: Final = 16  # vLLM loads a model of 32 bit in 16 bit, too
BLOCK_SCALE_BITS: Final = 32
REGULAR: Final = "re:"  # before a pattern that is a regular expression


@dataclass(frozen=True, slots=True)
class Format:
    """How one kind of matrices is stored. Sizes in bits, groups in inputs."""

    bits: float = HALF_BITS
    most_bits: float = 0  # where the file leaves a choice; 0: none
    group: int = 0  # inputs that share a scale; 0: all of an output
    scale_bits: float = 0  # of scale and zero, for each group
    block: tuple[int, int] | None = None  # outputs x inputs that share a scale of BLOCK_SCALE_BITS

    def bytes_of(self, inputs: int, outputs: int) -> float:
        """Return what a matrix of so many inputs and outputs takes."""
        value_bits = inputs * outputs * self.bits
        return (value_bits + self._scales(inputs, outputs)) / 8

    def most_bytes_of(self, inputs: int, outputs: int) -> float:
        """Return the most it may take."""
        spread = max(self.most_bits - self.bits, 0)
        return self.bytes_of(inputs, outputs) + inputs * outputs * spread / 8

    def _scales(self, inputs: int, outputs: int) -> float:
        if self.block:
            rows, columns = self.block
            return ceil(outputs / rows) * ceil(inputs / columns) * BLOCK_SCALE_BITS
        groups = ceil(inputs / self.group) if self.group else 1
        return outputs * groups * self.scale_bits


HALF: Final = Format()


@dataclass(frozen=True)
class Quantization:
    """Which matrices of a model are stored in which format."""

    method: str = ""  # empty: not quantized
    formats: tuple[tuple[tuple[str, ...], Format], ...] = ()  # patterns of modules; () is all
    skipped: tuple[str, ...] = ()  # patterns of modules that stay in 16 bit
    only_experts: bool = False
    head: bool = False  # the head is quantized, too
    pads_experts: bool = False  # kernels want larger matrices of experts
    unknown: str = ""  # what the file does not say; then no figure can be given

    @property
    def names_modules(self) -> bool:
        """Whether equal layers may be stored in different formats."""
        return bool(self.skipped) or any(names for names, _ in self.formats)

    @cached_property
    def _plainly_skipped(self) -> frozenset[str]:
        return frozenset(name for name in self.skipped if not is_pattern(name))

    @cached_property
    def _skipped_patterns(self) -> tuple[str, ...]:
        return tuple(name for name in self.skipped if is_pattern(name))

    @cached_property
    def _named(self) -> dict[str, Format]:
        named: dict[str, Format] = {}
        for names, form in self.formats:
            for name in names:
                if not is_pattern(name):
                    named.setdefault(name, form)  # the first one that names it counts
        return named

    @cached_property
    def _by_pattern(self) -> tuple[tuple[tuple[str, ...], Format], ...]:
        formats = []
        for names, form in self.formats:
            patterns = tuple(filter(is_pattern, names))
            if patterns or not names:
                formats.append((patterns, form))
        return tuple(formats)

    def format_of(self, module: str, expert: bool = False) -> Format:
        """Return the format of a linear layer by its name, `model.layers.0.mlp.up_proj`."""
        if not self.formats or (self.only_experts and not expert):
            return HALF
        inner: set[str] = set()
        if self._plainly_skipped or self._named:
            inner = set(inner_names(module))
        if not inner.isdisjoint(self._plainly_skipped):
            return HALF
        if matches(module, self._skipped_patterns):
            return HALF
        named = inner & self._named.keys()
        if named:
            return self._named[max(named, key=len)]
        for patterns, form in self._by_pattern:
            if not patterns or matches(module, patterns):
                return form
        return HALF


def is_pattern(name: str) -> bool:
    """Whether a name of modules stands for more than itself and what is in it."""
    return "*" in name or name.startswith(REGULAR)


def inner_names(module: str) -> Iterator[str]:
    """Return `a.b.c`, `a.b`, `b.c`, `a`...: a module is named by itself or what it is in."""
    parts = module.split(".")
    for first in range(len(parts)):
        for last in range(first + 1, len(parts) + 1):
            yield ".".join(parts[first:last])


def matches(module: str, patterns: tuple[str, ...]) -> bool:
    """Whether one of the patterns (`re:...` or `*.mlp*`) is for the module, or what it is in."""
    for pattern in patterns:
        if pattern.startswith(REGULAR):
            if re.match(pattern.removeprefix(REGULAR), module):
                return True
        elif fnmatchcase(module, pattern) or fnmatchcase(module, f"*{pattern}.*"):
            return True
    return False
