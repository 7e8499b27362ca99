"""The probe against the real vLLM."""

from __future__ import annotations

from math import isnan

import pytest
from prometheus_tools import lines_of
from real_vllm import real_vllm

from harness.errors import ServerUnreachable
from harness.export.exporter import GpuReader, TargetReader, made
from harness.runfolder.serverlines import NUMBERS
from harness.server.access import Access
from harness.server.address import Address
from harness.server.exchange import ask
from harness.server.gpu import Gpus
from harness.server.probe import probe
from harness.wire.vllm_metrics import server_sample
from harness.wire.vllm_series import SERIES


@pytest.mark.vllm
@pytest.mark.realtime
def test_real_vllm() -> None:
    """All that vLLM offers is found on both APIs, its 401 is understood, and it can be exported."""
    with real_vllm("probe") as server:
        url = server.url
        for api in ("chat", "completions"):
            got = probe(Access(Address.parse(url), api_key="k"), api)
            assert (got.model, got.max_model_len, got.version[:2]) == ("m", 2048, "0.")
            assert got.fixed_length
            assert got.continuous_usage
            assert got.final_usage
            assert (got.tokenize, got.metrics) == (True, True)
            assert (got.flags, got.cache["engines"]) == ({}, 1)  # flags: in development mode only
            assert got.cache["kv_tokens"] == got.cache["kv_blocks"] * got.cache["block_size"]
        sample = server_sample(ask(Access(Address.parse(url)), "/metrics").body, 0)
        assert sample is not None
        missing = [name for name in NUMBERS if isnan(getattr(sample, name))]
        assert missing == ["engine_cpu_s", "took_ns"]  # which no page says
        assert set(sample.histograms) == {row.key for row in SERIES if row.kind == "histogram"}
        assert sample.finished["length"] == 2  # the probe's own two
        target = TargetReader(Access(Address.parse(url)), {"max_num_seqs": 32})
        target.read()
        target.close()
        page = lines_of(made(target, GpuReader(Gpus("none"))))
        tokens = page["harness_server_kv_tokens", ()]
        assert tokens == page["harness_server_kv_free_tokens", ()] == got.cache["kv_tokens"]
        assert page["harness_server_seats", (("source", "given"),)] == 32
        assert page["harness_server_seats_left", ()] == 32
        assert page["harness_engine_cpu_seconds_total", ()] > 0
        with pytest.raises(ServerUnreachable, match="the key in VLLM_API_KEY was refused"):
            probe(Access(Address.parse(url), api_key="x", key_source="VLLM_API_KEY"), "chat")
