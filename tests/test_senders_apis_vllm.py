"""Every API of the real vLLM, from the probe to the record."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.load.workloads import API_PATHS, WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.records.request_record import RequestRecord

TOKENS = 12
# what the probe finds: an exact length, counts in each event, counts at the end
FOUND = {
    "chat": (True, True, True),
    "completions": (True, True, True),
    "responses": (True, False, True),
    "messages": (False, False, True),
    "generate": (True, True, True),
}


@pytest.mark.vllm
def test_all_apis_of_one_server(vllm: Callable[[str], str]) -> None:
    """Four requests through each: whole answers of the planned length, counted as vLLM counts."""
    # Bring gevent, which must not come before pytest-xdist has begun.
    import gevent  # noqa: PLC0415

    from harness.senders.drive_options import DriveOptions  # noqa: PLC0415
    from harness.senders.driver import Driver  # noqa: PLC0415
    from harness.senders.prepare import prepare  # noqa: PLC0415

    url = vllm("speculating")
    found, ended, lengths = {}, {}, {}
    for api in API_PATHS:
        sent = WORKLOADS["fixed"].through(api, exact=True).sized(48, TOKENS)
        own = {"body": {"temperature": 0, "top_p": 0.9}, "headers": (("X-Session", "{session}"),)}
        ready = prepare(DriveOptions(url, "", sent, run_id=f"{api}-run", **own))
        found[api] = ready.fixed_length, ready.continuous_usage, ready.final_usage
        records: list[RequestRecord] = []
        driver = Driver(ready, 0, records.extend)
        spec = driver.next_spec(0)
        assert spec is not None
        users = [gevent.spawn(driver.request, user, api, spec) for user in range(4)]
        gevent.joinall(users, raise_error=True)
        assert driver.flush(60)
        driver.close()
        whole = [record for record in records if record.outcome != "open"]
        ended[api] = {(r.outcome.value, r.error, r.finish_reason, r.output_tokens) for r in whole}
        assert {user.value.outcome.value for user in users} == {"ok"}
        # without counts in each event, tokens that share one are counted once
        counted = {int(sum(r.tokens)) for r in whole}
        assert counted == {TOKENS} if found[api][1] else max(counted) <= TOKENS
        lengths[api] = {r.prompt_tokens for r in whole}
        assert all(r.answer_index == 0 and r.first_event_ns > 0 for r in whole)
    assert found == FOUND
    assert ended == {api: {("ok", "", "length", TOKENS)} for api in API_PATHS}
    exact = {api: {48} for api in ("completions", "generate")}
    assert {api: lengths[api] for api in exact} == exact
    # Text is within what its few words vary by: this small tokenizer makes 1 to 6 tokens of one.
    assert {api: n for api in lengths for n in lengths[api] if abs(n - 48) > 8} == {}
