"""What a request says to each API: the fields of its JSON body, and headers of the user's own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.load.plan import RequestSpec

DEFAULT_FIELDS: Final[Mapping[str, Any]] = {"temperature": 0}  # the same answer every time
# Fields that decide what is measured, with the option that says it; --body must not set them.
OWN_FIELDS: Final = {
    "model": "--model",
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens"),
                    "--output-tokens"),
    **dict.fromkeys(("messages", "prompt", "input", "token_ids"), "--workload"),
    **dict.fromkeys(("stream", "stream_options", "ignore_eos", "n", "sampling_params"), ""),
}  # fmt: skip
# /inference/v1/generate takes these beside `sampling_params`, and everything else in it.
BESIDE_SAMPLING: Final = ("cache_salt", "priority", "output_mode", "kv_transfer_params")
PLACEHOLDERS: Final = ("session", "user", "request")
_VALUE: Final = re.compile(r"\$\{(\w+)\}|\$(\w+)|\{(\w+)\}")


def json_body(
    api: str,
    model: str,
    spec: RequestSpec,
    fields: Mapping[str, Any] = DEFAULT_FIELDS,
    *,
    fixed_length: bool = False,
    final_usage: bool = False,
    continuous_usage: bool = False,
) -> dict[str, Any]:
    """The body of a streamed request; `fields` are the user's. What `api` lacks is left out.

    `ignore_eos` and `min_tokens` are vLLM's: without them a model ends where it likes.
    """
    tokens, chat = spec.output_tokens, api in ("chat", "responses", "messages")
    length = {"max_output_tokens" if api == "responses" else "max_tokens": tokens}
    if fixed_length and api != "messages":
        length |= {"ignore_eos": True} | ({"min_tokens": tokens} if api != "responses" else {})
    body: dict[str, Any] = {"model": spec.model or model, "stream": True}
    if api not in ("responses", "messages") and (final_usage or continuous_usage):
        more = {"continuous_usage_stats": True} if continuous_usage else {}
        body["stream_options"] = {"include_usage": True, **more}
    body |= _chat(api, spec) if chat else _prompt(api, spec)
    if api != "generate":
        return {**fields, **length, **body}
    beside = {name: value for name, value in fields.items() if name in BESIDE_SAMPLING}
    sampling = {name: value for name, value in fields.items() if name not in beside}
    return {**beside, **body, "sampling_params": sampling | length}


def _chat(api: str, spec: RequestSpec) -> dict[str, Any]:
    """Messages and tools are OpenAI's; Anthropic's API has the system message aside."""
    said, tools = list(spec.messages), list(spec.tools)
    if not said:
        said = [{"role": "system", "content": spec.system}] * bool(spec.system)
        said.append({"role": "user", "content": spec.text})
    found: dict[str, Any] = {"messages": said, "tools": tools}
    functions = [tool["function"] for tool in tools]
    if api == "responses":
        found = {"input": said, "tools": [{"type": "function", **one} for one in functions]}
    elif api == "messages":
        found = {
            "system": "\n\n".join(one["content"] for one in said if one["role"] == "system"),
            "messages": [one for one in said if one["role"] != "system"],
            "tools": [{"name": one["name"], "description": one.get("description", ""),
                       "input_schema": one.get("parameters", {})} for one in functions],
        }  # fmt: skip
    return {name: value for name, value in found.items() if value}


def _prompt(api: str, spec: RequestSpec) -> dict[str, Any]:
    if api == "generate":
        return {"token_ids": list(spec.token_ids)}
    if spec.token_ids:
        return {"prompt": list(spec.token_ids)}
    return {"prompt": f"{spec.system}\n\n{spec.text}" if spec.system else spec.text}


def fill_headers(
    headers: Sequence[tuple[str, str]], names: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, str]:
    """Headers as they are sent: `{user}` becomes one of `names`, `$NAME` a variable's value."""

    def value(found: re.Match[str]) -> str:
        variable = found[1] or found[2]
        return environment.get(variable, "") if variable else names[found[3]]

    return {name: _VALUE.sub(value, text) for name, text in headers}


def parts_of_header(value: str) -> tuple[list[str], list[str]]:
    """The (environment variables, placeholders) that a header's value names."""
    found = _VALUE.findall(value)
    return [a or b for a, b, _ in found if a or b], [name for *_, name in found if name]
