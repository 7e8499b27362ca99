"""The probe against the real vLLM."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING

import pytest
import real_vllm
from packaging.version import Version
from prometheus_tools import lines_of

from harness.errors import ServerUnreachable
from harness.export.exporter_service import GpuReader, TargetReader, render_page
from harness.records.folder_reader import NUMBER_FIELDS
from harness.server.access import TargetAccess
from harness.server.address import Address
from harness.server.gpu import GpuReadings
from harness.server.http_exchange import fetch
from harness.server.probe import probe
from harness.wire.vllm_metrics import server_sample
from harness.wire.vllm_series import SERIES

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.records.samples import ServerSample


def newer_than(version: str) -> set[str]:
    """The keys of the series that this vLLM does not have yet."""
    since = {row.key: row.spellings[0].since for row in SERIES}
    numbered = {key: Version(first) for key, first in since.items() if first[:1].isdigit()}
    return {key for key, first in numbered.items() if first > Version(version)}


@pytest.mark.parametrize(
    ("version", "want"),
    [("0.33.0", set()), ("0.32.0+cpu", {"kv_fetching"})],
)
def test_which_series_are_newer(version: str, want: set[str]) -> None:
    """By the row's `since`, where that is a number."""
    assert {"kv_fetching", "awake"} & newer_than(version) == want


@pytest.fixture
def address(vllm: Callable[[str], str]) -> Address:
    """Of a server that asks for a key."""
    return Address.parse(vllm("speculating"))


def sample(address: Address) -> ServerSample:
    """What its metrics say, for which it wants no key."""
    found = server_sample(fetch(TargetAccess(address), "/metrics").body, 0)
    assert found is not None
    return found


@pytest.mark.vllm
@pytest.mark.parametrize("api", ["chat", "completions"])
def test_all_that_it_offers_is_found(api: str, address: Address) -> None:
    """By one request."""
    before = sample(address)
    got = probe(TargetAccess(address, api_key=real_vllm.KEY), api)
    assert (got.model, got.max_model_len, got.version[:2]) == ("m", 32768, "0.")
    assert got.fixed_length
    assert got.continuous_usage
    assert got.final_usage
    assert (got.tokenize, got.metrics) == (True, True)
    assert (got.flags, got.cache["engines"]) == ({}, 1)  # flags: in development mode only
    assert got.cache["kv_tokens"] == got.cache["kv_blocks"] * got.cache["block_size"]
    assert sample(address).finished["length"] - before.finished.get("length", 0) == 1


@pytest.mark.vllm
def test_its_metrics_are_all_known(address: Address) -> None:
    """But what no page of this vLLM says."""
    found = sample(address)
    newer = newer_than(probe(TargetAccess(address, api_key=real_vllm.KEY), "chat").version)
    missing = [name for name in NUMBER_FIELDS if isnan(getattr(found, name)) and name not in newer]
    assert missing == ["api_threads", "engine_cpu_s", "took_ns"]  # no page says these
    histograms = {row.key for row in SERIES if row.kind == "histogram"}
    apart = {"transfer"}  # of a server that gets its KV cache from another, by NIXL
    assert set(found.histograms) == histograms - newer - apart


@pytest.mark.vllm
def test_it_can_be_exported(address: Address) -> None:
    """Nothing runs: its KV cache and all of its slots are free."""
    got = probe(TargetAccess(address, api_key=real_vllm.KEY), "chat")
    target = TargetReader(TargetAccess(address), {"max_num_seqs": 4})
    target.read()
    target.close()
    page = lines_of(render_page(target, GpuReader(GpuReadings("none"))))
    tokens = page["harness_server_kv_tokens", ()]
    assert tokens == page["harness_server_kv_free_tokens", ()] == got.cache["kv_tokens"]
    assert page["harness_server_max_num_seqs", (("source", "given"),)] == 4
    assert page["harness_server_slots_free", ()] == 4
    assert page["harness_engine_cpu_seconds_total", ()] > 0


@pytest.mark.vllm
def test_a_wrong_key(address: Address) -> None:
    """Its 401 is understood."""
    access = TargetAccess(address, api_key="x", key_source="VLLM_API_KEY")
    with pytest.raises(ServerUnreachable, match="the key in VLLM_API_KEY was refused"):
        probe(access, "chat")
