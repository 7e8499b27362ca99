"""Bytes that a token leaves in the KV cache, by `--kv-cache-dtype` of vLLM 0.32, scales included.

Attention backends of vLLM pack keys and values each in their own way; the sizes are those of the
specs that they publish (`customize_spec`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from harness.errors import ConfigError

AUTO: Final = "auto"
PLAIN_BYTES: Final = {"float16": 2, "half": 2, "bfloat16": 2, "float32": 4, "float": 4}
EIGHT_BIT: Final = ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc")
PER_TOKEN_BITS: Final = {
    "fp8_per_token_head": 8,
    "int8_per_token_head": 8,
    "int4_per_token_head": 4,
}
SCALE_BYTES: Final = 4  # a 32-bit scale of keys and one of values, of each token and head
PACKED_LATENT_BYTES: Final = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}  # of 512 + 64 values
BOUNDARY_LAYERS: Final = 2  # at each end, that packed formats leave as the model has them


@dataclass(frozen=True, slots=True)
class KvFormat:
    """How a key and a value of one head are stored."""

    key_bits: int
    value_bits: int
    key_extra_bytes: int = 0
    value_extra_bytes: int = 0
    group_values: int = 0  # that share a scale of one byte; 0: none do

    def bytes_of(self, head_size: int) -> int:
        """Return the bytes of a key and a value, an even number as vLLM aligns them."""
        key = ceil(head_size * self.key_bits / 8) + self.key_extra_bytes
        value = ceil(head_size * self.value_bits / 8) + self.value_extra_bytes
        scales = 0
        if self.group_values:
            scales = 2 * (head_size // self.group_values)
        total = key + value + scales
        return total + total % 2


FORMATS: Final = {
    **{name: KvFormat(8, 8) for name in EIGHT_BIT},
    **{n: KvFormat(bits, bits, SCALE_BYTES, SCALE_BYTES) for n, bits in PER_TOKEN_BITS.items()},
    "nvfp4": KvFormat(4, 4, group_values=16),
    "nvfp4_4over6": KvFormat(4, 4, group_values=16),
    "ultraquant_4bit": KvFormat(4, 4, group_values=32),
    # a norm beside each key, a scale and a zero point beside each value
    "turboquant_k8v4": KvFormat(8, 4, 0, 4),
    "turboquant_4bit_nc": KvFormat(4, 4, 2, 4),
    "turboquant_k3v4_nc": KvFormat(3, 4, 2, 4),
    "turboquant_3bit_nc": KvFormat(3, 3, 2, 4),
}
KV_CACHE_DTYPES: Final = (
    AUTO,
    "bfloat16",
    "float16",
    "float32",
    *FORMATS,
    *PACKED_LATENT_BYTES,
)


def head_bytes(dtype: str, head_size: int, model_bytes: int = 2) -> int:
    """Return the bytes of a token's key and value in one head.

    `model_bytes` are those of a value in the model's own precision, which `auto` takes. Raises
    ConfigError for a format that this kind of attention does not have.
    """
    if dtype in PACKED_LATENT_BYTES:
        raise ConfigError(
            f"--kv-cache-dtype is {dtype}: expected a format for keys and values of heads, this "
            "one is for latent attention (DeepSeek); try --kv-cache-dtype fp8."
        )
    if dtype in FORMATS:
        return FORMATS[dtype].bytes_of(head_size)
    return 2 * head_size * _plain_bytes(dtype, model_bytes)


def latent_bytes(dtype: str, latent_size: int, model_bytes: int = 2) -> int:
    """Return the bytes of a token's latent vector (MLA), of which there is one for all heads.

    Raises ConfigError for a format that latent attention does not have.
    """
    if dtype in PACKED_LATENT_BYTES:
        return PACKED_LATENT_BYTES[dtype]
    if dtype in EIGHT_BIT:
        return latent_size
    if dtype in PER_TOKEN_BITS:
        return latent_size * PER_TOKEN_BITS[dtype] // 8 + 2 * SCALE_BYTES
    if dtype in FORMATS:
        raise ConfigError(
            f"--kv-cache-dtype is {dtype}: expected a format that vLLM has for latent attention "
            "(DeepSeek); try --kv-cache-dtype fp8."
        )
    return latent_size * _plain_bytes(dtype, model_bytes)


def keeps_boundary_layers(dtype: str) -> bool:
    """Say whether the first and last layers stay in the model's own precision."""
    return dtype.startswith(("turboquant_", "ultraquant_"))


def boundary_layers(dtype: str, layers: int) -> frozenset[int]:
    """Return the indexes of the layers that are not packed; none for most formats."""
    if not keeps_boundary_layers(dtype):
        return frozenset()
    ends = min(BOUNDARY_LAYERS, layers // 2)
    return frozenset([*range(ends), *range(layers - ends, layers)])


def _plain_bytes(dtype: str, model_bytes: int) -> int:
    if dtype == AUTO:
        return model_bytes
    if dtype in PLAIN_BYTES:
        return PLAIN_BYTES[dtype]
    raise ConfigError(
        f"--kv-cache-dtype is {dtype!r}: expected one of {', '.join(KV_CACHE_DTYPES)}; try "
        "--kv-cache-dtype auto."
    )


def meant_dtype(asked: str, own: str = AUTO) -> str:
    """Return what a flag's `auto` is, given what the model's quantization says of its cache."""
    return own if asked in ("", AUTO) else asked


def model_value_bytes(dtype: str) -> int:
    """Return the bytes of a value by `--dtype`; vLLM loads a model of 32 bit in 16 unless told."""
    return PLAIN_BYTES.get(dtype.removeprefix("torch."), 2)
