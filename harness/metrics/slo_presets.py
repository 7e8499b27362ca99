"""SLO_PRESETS: limits that others have published, for `--slo preset:NAME`; docs/scenarios.md.

They are texts: the command line's help must not import what parses them.
"""

from typing import Final

from harness.errors import ConfigError, closest

PREFIX: Final = "preset:"
SLO_PRESETS: Final = {
    "voice": ("ttft_p95=400ms",),  # Bolna: 100 to 400 ms of 600 ms up to the first sound
    "code": ("ttft_p90=125ms", "tpot_p90=200ms"),  # DistServe, code completion
    "chat": ("ttft_p99=450ms", "tpot_p99=40ms"),  # MLPerf, Llama 2 70B Interactive
    "batch": ("ttft_p99=6s", "tpot_p99=175ms"),  # MLPerf, Llama 3.1 405B Server
    "agent": ("ttft_p99=1.5s", "tpot_p99=15ms"),  # MLPerf, DeepSeek-R1 Interactive
}


def slo_texts(text: str) -> tuple[str, ...]:
    """The SLOs of `preset:NAME`; any other text as it is. Raises ConfigError."""
    if not text.strip().startswith(PREFIX):
        return (text,)
    name = text.strip().removeprefix(PREFIX)
    if name not in SLO_PRESETS:
        raise ConfigError(
            f"--slo is {text!r}: expected one of {', '.join(SLO_PRESETS)} after {PREFIX}; "
            f"try --slo {PREFIX}{closest(name, SLO_PRESETS, 'chat')}."
        )
    return SLO_PRESETS[name]
