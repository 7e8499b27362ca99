"""Towers of a multimodal model: counted where their kind is known, else said to be left out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from harness.memory.towers import Tower
from harness.server.config_values import ConfigValues

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.memory.model_shape import ModelShape
    from harness.memory.weights import WeightPlan

OTHER_TOWERS: Final = (
    "audio_config",
    "vit_config",
    "visual",
    "encoder_config",
    "speech_config",
    "vision_tower_config",
    "thinker_config",
)
Defaults = dict[str, Any]
SIGLIP: Final[Defaults] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "image_size": 224,
    "patch_size": 16,
}
CLIP: Final[Defaults] = {**SIGLIP, "patch_size": 32}
INTERN: Final[Defaults] = {
    "hidden_size": 3200,
    "intermediate_size": 12_800,
    "num_hidden_layers": 48,
    "image_size": 448,
    "patch_size": 14,
}
PIXTRAL: Final[Defaults] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "patch_size": 16,
}
QWEN2: Final[Defaults] = {
    "depth": 32,
    "embed_dim": 1280,
    "mlp_ratio": 4,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
}
QWEN2_5: Final[Defaults] = {
    "depth": 32,
    "hidden_size": 3584,
    "intermediate_size": 3420,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
}
QWEN3: Final[Defaults] = {
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "patch_size": 16,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "num_position_embeddings": 2304,
}
QWEN3_DEEPSTACK: Final = 3  # more mergers, for layers 8, 16 and 24


def add_towers(plan: WeightPlan, values: ConfigValues, shape: ModelShape) -> WeightPlan:
    """Return the plan with its vision tower, or with a note that it is of the text part only."""
    unknown = [name for name in OTHER_TOWERS if values.value(name) is not None]
    vision = values.value("vision_config")
    if vision is not None:
        part = values.part("vision_config")
        kind = part.word("model_type") or shape.family.removesuffix("_text")
        read = TOWERS.get(kind)
        if read is None:
            unknown.insert(0, "vision_config")
        else:
            plan = replace(plan, towers=read(part, shape.hidden).matrices())
    if not unknown:
        return plan
    note = (
        f"Weights are of the text part only: {', '.join(unknown)} of a kind that is not known here "
        "comes on top; try --weights with the GB of the whole model, of all GPUs."
    )
    return replace(plan, notes=(*plan.notes, note), most_more_bytes=None)


def _size(part: ConfigValues, name: str) -> int:
    return part.whole(name) or 0


def _with(part: ConfigValues, defaults: Defaults) -> ConfigValues:
    return ConfigValues(part.fields, defaults, part.file)


def _patches(part: ConfigValues) -> int:
    patch = max(_size(part, "patch_size"), 1)
    in_a_row = _size(part, "image_size") // patch
    return in_a_row**2


def _body(part: ConfigValues, layers: str = "num_hidden_layers") -> Tower:
    """A tower of these sizes, as most kinds name them."""
    return Tower(
        hidden=_size(part, "hidden_size"),
        inner=_size(part, "intermediate_size"),
        layers=_size(part, layers),
        patch=_size(part, "patch_size"),
    )


def _siglip(part: ConfigValues, text: int) -> Tower:
    """Gemma 3's: one matrix projects, after a norm."""
    part = _with(part, SIGLIP)
    body = _body(part)
    return replace(
        body,
        positions=_patches(part),
        extra=3,
        projector=((body.hidden, text),),
        projector_bias=False,
    )


def _clip(part: ConfigValues, text: int) -> Tower:
    """LLaVA's: vLLM loads no layer after the one whose output is used, the last but one."""
    part = _with(part, CLIP)
    body = _body(part)
    return replace(
        body,
        layers=max(body.layers - 1, 0),
        positions=_patches(part) + 1,
        patch_bias=False,
        extra=3,
        projector=((body.hidden, text), (text, text)),
    )


def _intern(part: ConfigValues, text: int) -> Tower:
    """InternVL's: four patches become one, then two matrices project."""
    part = _with(part, INTERN)
    body = _body(part)
    return replace(
        body,
        positions=_patches(part) + 1,
        extra=1,
        projector=((4 * body.hidden, text), (text, text)),
    )


def _pixtral(part: ConfigValues, text: int) -> Tower:
    """Mistral 3's: four patches become one, then two matrices project."""
    body = _body(_with(part, PIXTRAL))
    hidden = body.hidden
    return replace(
        body,
        gated=True,
        bias=False,
        norm_bias=False,
        patch_bias=False,
        extra=2,
        projector=((4 * hidden, hidden), (hidden, text), (text, text)),
        projector_bias=False,
    )


def _merger(part: ConfigValues, hidden: int, text: int) -> tuple[tuple[int, int], ...]:
    merged = _size(part, "spatial_merge_size") ** 2 * hidden
    return ((merged, merged), (merged, text))


def _qwen2(part: ConfigValues, text: int) -> Tower:
    part = _with(part, QWEN2)
    hidden = _size(part, "embed_dim")
    return Tower(
        hidden=hidden,
        inner=hidden * _size(part, "mlp_ratio"),
        layers=_size(part, "depth"),
        patch=_size(part, "patch_size"),
        frames=_size(part, "temporal_patch_size"),
        patch_bias=False,
        extra=2,
        projector=_merger(part, hidden, text),
    )


def _qwen2_5(part: ConfigValues, text: int) -> Tower:
    part = _with(part, QWEN2_5)
    body = _body(part, "depth")
    output = part.whole("out_hidden_size") or text
    return replace(
        body,
        gated=True,
        norm_bias=False,
        frames=_size(part, "temporal_patch_size"),
        patch_bias=False,
        extra=1,
        projector=_merger(part, body.hidden, output),
    )


def _qwen3(part: ConfigValues, text: int) -> Tower:
    part = _with(part, QWEN3)
    body = _body(part, "depth")
    output = part.whole("out_hidden_size") or text
    merger = _merger(part, body.hidden, output)
    deepstack = len(part.wholes("deepstack_visual_indexes")) or QWEN3_DEEPSTACK
    return replace(
        body,
        frames=_size(part, "temporal_patch_size"),
        positions=_size(part, "num_position_embeddings"),
        extra=2,
        projector=merger * (1 + deepstack),
    )


TOWERS: Final[dict[str, Callable[[ConfigValues, int], Tower]]] = {
    "siglip_vision_model": _siglip,
    "clip_vision_model": _clip,
    "intern_vit_6b": _intern,
    "pixtral": _pixtral,
    "qwen2_vl": _qwen2,
    "qwen2_5_vl": _qwen2_5,
    "qwen3_vl": _qwen3,
    "qwen3_vl_moe": _qwen3,
    "gemma3": _siglip,
}
