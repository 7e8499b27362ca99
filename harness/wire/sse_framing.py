"""The bytes that frame a stream of events: how an event, its end and an error are written.

A server sends each event as a line `data: {...}` and an empty line, the last one with [DONE]; over
HTTP/1.1 nearly every event has a chunk of its own. All code that looks at these bytes imports them
from here. C has copies (`FRAMING`): the extension exports the values that it was built with, and
`harness.reader.reader_choice` refuses an extension built with others.
"""

from __future__ import annotations

from typing import Final

EVENT_STREAM: Final = "text/event-stream"

DATA_FIELD: Final = b"data"
DATA: Final = b"data: "  # a server writes one space; the standard also allows none
EVENT_END: Final = b"\n\n"
EVENT_ENDS: Final = (
    EVENT_END,
    b"\r\n\r\n",
    b"\r\r",
)  # all that the standard allows, except mixtures
CHUNK_END: Final = b"\r\n"

DONE: Final = b"[DONE]"
LAST_EVENT: Final = EVENT_END + DATA + DONE + EVENT_END  # with the end of the event before it
ERROR_KEY: Final = b'"error"'  # only a key or a whole value: inside a string quotes are escaped
TEXT_KEYS: Final = (b'"content":"', b'"text":"')  # what a token's text follows

# The most that a peer may make us buffer. vLLM's events have 200 to 400 bytes; with the token ids
# of a long prompt and logprobs they may have a hundred thousand.
MAX_EVENT_BYTES: Final = 1 << 20
TOO_LONG: Final = f"an event of the stream is longer than {MAX_EVENT_BYTES >> 20} MiB"

FRAMING: Final = {
    "data": DATA,
    "event_end": EVENT_END,
    "chunk_end": CHUNK_END,
    "done": DONE,
    "error_key": ERROR_KEY,
}
