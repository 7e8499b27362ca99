"""Layer 5, pure: `--compat`, other tools' figures of the same requests.

Only a run that asks for it imports more.

`definitions` says how each tool defines what it prints, and where it says so; `tool_comparison`
computes that, beside ours.
"""

from __future__ import annotations

from typing import Final

from harness.errors import ConfigError, closest

TOOLS: Final = (  # keys of COMPAT
    "vllm-bench",
    "guidellm",
    "aiperf",
    "genai-bench",
    "inference-perf",
    "xk6-llm",
)


def parse_tools(text: str) -> tuple[str, ...]:
    """Some of TOOLS from `vllm-bench,aiperf`. Raises ConfigError."""
    parts = text.split(",")
    names = tuple(part.strip() for part in parts)
    for name in names:
        if name not in TOOLS:
            known = ", ".join(TOOLS)
            nearest = closest(name, TOOLS, "vllm-bench")
            raise ConfigError(
                f"--compat is {name!r}: expected one or more of {known}; try --compat {nearest}."
            )
    return names
