"""What a request says: the fields of its JSON body, for each API, and the user's own headers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from harness.errors import ConfigError

if TYPE_CHECKING:
    from harness.load.plan import RequestSpec

Json = dict[str, Any]
DEFAULT_FIELDS: Final[Mapping[str, Any]] = {"temperature": 0}  # the same answer every time
# They decide what is measured, so --body must not set them.
OWN_FIELDS: Final = (
    "model", "messages", "prompt", "input", "token_ids", "sampling_params", "stream", "n",
    "stream_options", "ignore_eos", "min_tokens", "max_tokens", "max_completion_tokens",
    "max_output_tokens",
)  # fmt: skip
CHAT_APIS: Final = ("chat", "responses", "messages")  # a prompt is messages, and may have tools
PLACEHOLDERS: Final = ("session", "user", "request")
_NAMED: Final = re.compile(r"\$(\w+)|\{(\w+)\}")


def json_body(
    api: str,
    model: str,
    spec: RequestSpec,
    fields: Mapping[str, Any] = DEFAULT_FIELDS,
    *,
    fixed_length: bool = False,
    final_usage: bool = False,
    continuous_usage: bool = False,
) -> Json:
    """The body of a streamed request; `fields` are the user's. What `api` lacks is left out.

    `ignore_eos` and `min_tokens` are vLLM's: without them a model ends where it likes.
    """
    fields = {**fields, **spec.body}
    length = _length_fields(api, spec.output_tokens, fixed=fixed_length)
    body: Json = {"model": spec.model or model, "stream": True}
    # These two report usage unasked.
    reports_usage_anyway = api in ("responses", "messages")
    if (final_usage or continuous_usage) and not reports_usage_anyway:
        body["stream_options"] = {"include_usage": True}
        if continuous_usage:
            body["stream_options"]["continuous_usage_stats"] = True
    if api in CHAT_APIS:
        name = "input" if api == "responses" else "messages"
        body[name] = _messages(spec)
        if spec.tools:
            body["tools"] = spec.tools
    else:
        body |= _prompt(spec, api)
    if api == "generate":
        body["sampling_params"] = {**fields, **length}
        return body
    # Ours come last and win: they decide what is measured.
    return {**fields, **length, **body}


def _length_fields(api: str, tokens: int, *, fixed: bool) -> Json:
    if api == "responses":
        fields: Json = {"max_output_tokens": tokens}
    else:
        fields = {"max_tokens": tokens}
    if fixed and api != "messages":
        fields["ignore_eos"] = True
        if api != "responses":
            fields["min_tokens"] = tokens
    return fields


def _messages(spec: RequestSpec) -> Sequence[Json]:
    if spec.messages:
        return spec.messages
    messages = []
    if spec.system:
        messages.append({"role": "system", "content": spec.system})
    messages.append({"role": "user", "content": spec.text})
    return messages


def _prompt(spec: RequestSpec, api: str) -> Json:
    if spec.token_ids:
        name = "token_ids" if api == "generate" else "prompt"
        return {name: list(spec.token_ids)}
    if spec.system:
        return {"prompt": f"{spec.system}\n\n{spec.text}"}
    return {"prompt": spec.text}


def names_in(value: str) -> tuple[list[str], list[str]]:
    """The (environment variables, placeholders) that a header's value names."""
    pairs = _NAMED.findall(value)  # (variable, ""), or ("", placeholder)
    variables = [variable for variable, _ in pairs if variable]
    placeholders = [placeholder for _, placeholder in pairs if placeholder]
    return variables, placeholders


def is_header_value(text: str) -> bool:
    """Whether HTTP can carry it: some ASCII on one line."""
    return text != "" and text.isascii() and text.isprintable()


def unsendable(value: str, environment: Mapping[str, str]) -> str:
    """What is wrong with a header's value, or with a variable that it names; "" for nothing.

    Never quotes either: they may be secret.
    """
    variables, _ = names_in(value)
    named = [environment.get(variable, "") for variable in variables]
    if all(map(is_header_value, [value, *named])):
        return ""
    return "has a character that HTTP cannot carry, or a variable that is not set: expected ASCII"


def check_key(key: str, source: str) -> None:
    """Raises ConfigError, which names the variable `source` and never quotes the key."""
    if key and (not is_header_value(key) or " " in key):
        raise ConfigError(
            f"{source or 'the API key'} holds a blank, a line break or a character outside ASCII, "
            "which no HTTP header can carry: expected the bare key; "
            f"try `export {source or 'VLLM_API_KEY'}=$(cat FILE)`."
        )


def fill_headers(
    headers: Sequence[tuple[str, str]], names: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, str]:
    """Headers as they are sent: `{user}` becomes one of `names`, `$NAME` a variable's value."""

    def value(named: re.Match[str]) -> str:
        variable, placeholder = named.groups()
        if variable:
            return environment.get(variable, "")
        return names[placeholder]

    return {name: _NAMED.sub(value, text) for name, text in headers}
