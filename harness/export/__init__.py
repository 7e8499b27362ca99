"""Layer 7: what leaves for Prometheus, the live page and other tools; a run folder as an upload."""

from typing import Final

FORMAT_NAMES: Final = ("vllm-bench", "llm-d")  # keys of FORMATS
