"""The probe against the real vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from real_vllm import real_vllm

from harness.errors import ServerUnreachable
from harness.server.access import Access
from harness.server.address import Address
from harness.server.probe import probe

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.vllm
@pytest.mark.realtime
def test_real_vllm(tmp_path: Path) -> None:
    """All that vLLM offers is found on both APIs, and its 401 is understood."""
    with real_vllm(tmp_path / "log", "--max-model-len", "2048", "--api-key", "k") as url:
        for api in ("chat", "completions"):
            got = probe(Access(Address.parse(url), api_key="k"), api)
            assert (got.model, got.max_model_len, got.version[:2]) == ("m", 2048, "0.")
            assert got.fixed_length
            assert got.continuous_usage
            assert got.final_usage
            assert (got.tokenize, got.metrics) == (True, True)
        with pytest.raises(ServerUnreachable, match="the key in VLLM_API_KEY was refused"):
            probe(Access(Address.parse(url), api_key="x", key_source="VLLM_API_KEY"), "chat")
