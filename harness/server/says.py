"""What a vLLM says of its own set-up: its KV cache's in /metrics, its flags where it shows them.

/server_info exists only with VLLM_SERVER_DEV_MODE=1 (and in the embedded engine); everywhere else
the flags are not to be had from the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from harness.errors import ServerUnreachable
from harness.server.exchange import ask
from harness.server.seats import FLAGS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.server.access import Access

SERVER_INFO: Final = "/server_info?config_format=json"


def flags(access: Access) -> dict[str, Any]:
    """Those of FLAGS that the server shows; {} when it shows none."""
    try:
        answer = ask(access, SERVER_INFO)
    except ServerUnreachable:
        return {}
    body = answer.json() if answer.status == 200 else None  # noqa: PLR2004 - HTTP
    config = body.get("vllm_config") if isinstance(body, dict) else None
    if not isinstance(config, dict):
        return {}
    return {
        name: part[name]
        for key, names in FLAGS.items()
        if isinstance(part := config.get(key), dict)
        for name in names
        if isinstance(part.get(name), int | float | str)
    }


def cache_summary(engines: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Of `vllm:cache_config_info`, one per engine: what all engines have together; {}: unknown.

    `block_size` in tokens, `kv_blocks` and `kv_tokens` over all engines.
    """
    if not engines:
        return {}
    size = _whole(engines[0].get("block_size"))
    blocks = [_whole(engine.get("num_gpu_blocks")) for engine in engines]
    total = None if None in blocks else sum(b for b in blocks if b is not None)
    return {
        "engines": len(engines),
        "block_size": size,
        "kv_blocks": total,
        "kv_tokens": total * size if total is not None and size is not None else None,
        "cache_config": dict(engines[0]),
    }


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
