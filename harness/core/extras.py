"""What a plain installation leaves out: the extras of pyproject.toml, and what takes each.

An extra saves much, or it would not be one. A run without it is whole: what is left out can be made
later, from the run folder, on any machine that has the extra.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from harness.errors import ConfigError

PACKAGES: Final = {
    "charts": ("dukpy",),
    "parquet": ("pyarrow",),
    "pandas": ("pandas", "pyarrow"),
    "otlp": ("opentelemetry-exporter-otlp-proto-http",),
}
# Where a package's module has another name.
MODULES: Final = {
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry.exporter.otlp.proto.http"
}
# What `vllm-harness report` makes of a run folder, by the extra that it takes.
MADE_BY_REPORT: Final = {
    "charts": "The charts of report.html take JavaScript and cannot be printed",
    "parquet": "There is no requests.parquet and no levels.parquet",
}


class MissingPackage(ConfigError):  # noqa: N818 - reads like its neighbors in errors.py
    """What was asked for takes an extra that is not installed."""


def has_extra(extra: str) -> bool:
    """Whether all of its packages are installed."""
    return not _missing(extra)


def need_extra(extra: str, what: str) -> None:
    """Raises MissingPackage, which names the packages that `what` lacks."""
    if not has_extra(extra):
        raise MissingPackage(f"{what} cannot be used: {needs(extra)}.")


def needs(extra: str) -> str:
    """Which of its packages are not installed, and how to install them."""
    missing = _missing(extra)
    are = "is" if len(missing) == 1 else "are"
    install = f"pip install 'vllm-harness[{extra}]'"
    return f"{' and '.join(missing)} {are} not installed; try `{install}`"


def left_out(folder: object) -> list[str]:
    """A sentence for each extra without which the reports of a run were written."""
    sentences = []
    for extra, what in MADE_BY_REPORT.items():
        if not has_extra(extra):
            sentences.append(f"{what}: {needs(extra)}, then `vllm-harness report {folder}`.")
    return sentences


def _missing(extra: str) -> list[str]:
    return [package for package in PACKAGES[extra] if not _is_there(MODULES.get(package, package))]


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it is in
        return False
