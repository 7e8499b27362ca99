"""Every API of the real vLLM, from the probe to the record."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import gevent
import pytest

from harness.load.workloads import API_PATHS, WORKLOADS
from harness.senders.drive_options import DriveOptions
from harness.senders.driver import Driver
from harness.senders.prepare import prepare

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.records.request_record import RequestRecord

PROMPT, ANSWER = 48, 12
REQUESTS = 4
VARIES = 8  # by so many tokens a prompt of text: this small tokenizer makes 1 to 6 of a word
EXACT = ("completions", "generate")  # prompts are sent as tokens


class Features(NamedTuple):
    """What the probe finds."""

    fixed_length: bool
    counts_in_each_event: bool
    counts_at_the_end: bool


FEATURES = {
    "chat": Features(True, True, True),
    "completions": Features(True, True, True),
    "responses": Features(True, False, True),
    "messages": Features(False, False, True),
    "generate": Features(True, True, True),
}


def answered(options: DriveOptions, api: str) -> list[RequestRecord]:
    """Records of requests that were sent at once."""
    parts: list[RequestRecord] = []
    driver = Driver(options, 0, parts.extend)
    spec = driver.next_spec(0)
    assert spec is not None
    users = [gevent.spawn(driver.request, user, api, spec) for user in range(REQUESTS)]
    gevent.joinall(users, raise_error=True)
    assert driver.flush(60)
    driver.close()
    assert [user.value.outcome.value for user in users] == ["ok"] * REQUESTS
    return [record for record in parts if record.outcome != "open"]


@pytest.mark.vllm
@pytest.mark.parametrize("api", API_PATHS)
def test_an_api(api: str, vllm: Callable[[str], str]) -> None:
    """Four requests: whole answers of the planned length, counted as vLLM counts."""
    sent = WORKLOADS["fixed"].through(api, exact=True).sized(PROMPT, ANSWER)
    options = prepare(
        DriveOptions(
            vllm("speculating"),
            "",
            sent,
            run_id=f"{api}-run",
            key_source="VLLM_API_KEY",
            body={"temperature": 0, "top_p": 0.9},
            headers=(("X-Session", "{session}"),),
        )
    )
    found = Features(options.fixed_length, options.continuous_usage, options.final_usage)
    assert found == FEATURES[api]
    records = answered(options, api)
    assert len(records) == REQUESTS
    for record in records:
        ended = record.outcome, record.error, record.finish_reason, record.output_tokens
        assert ended == ("ok", "", "length", ANSWER)
        assert record.answer_index == 0
        assert record.first_event_ns > 0
        if found.counts_in_each_event:
            assert sum(record.tokens) == ANSWER
        else:  # tokens that share an event are counted once
            assert sum(record.tokens) <= ANSWER
        if api in EXACT:
            assert record.prompt_tokens == PROMPT
        else:
            assert abs(record.prompt_tokens - PROMPT) <= VARIES
