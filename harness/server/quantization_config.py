"""What a model's `quantization_config` says of its weights; ModelOpt's own file reads the same.

A method that is not known gives no figure: `unknown` says why. The widths are those of the
checkpoints that vLLM 0.32 loads.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from harness.memory.quantization import REGULAR, Format, Quantization

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.server.config_values import ConfigValues

SKIPPED: Final = (
    "modules_to_not_convert",
    "ignore",
    "exclude_modules",
    "ignored_layers",
    "exclude",
    "llm_int8_skip_modules",
)
ModuleFormat = tuple[tuple[str, ...], Format]  # patterns of modules, and how these are stored
ALL: Final = ()  # patterns of modules: every linear layer
SCALE: Final = 16  # bits of a scale in 16 bit
FULL_SCALE: Final = 32
SMALL_SCALE: Final = 8  # FP8
MXFP4_GROUP: Final = 32
NVFP4_GROUP: Final = 16
INT4_GROUP: Final = 128
NF4_GROUP: Final = 64
NF4_DOUBLE_GROUP: Final = 256  # scales of 8 bits that share one of 32
INT4: Final = 4
INT8: Final = 8
MOST_BITS: Final = 16
# How files of multimodal models name what is `model.` in the text's own.
TEXT_PART: Final = re.compile(r"^(model\.)?language_model\.(model\.)?")
# A regular expression of more repetitions, or of a repeated group, may take for ever.
MOST_REPETITIONS: Final = 4
LONGEST_PATTERN: Final = 200
REPEATED_GROUP: Final = re.compile(r"[)*+}][*+{]")


def quantization_of(scheme: ConfigValues) -> Quantization:
    """Return how the weights are stored. Raises ConfigError for a field that makes no sense."""
    if not scheme.fields:
        return Quantization()
    method = scheme.word("quant_method").lower().replace("_", "-")
    inner = scheme.part("quantization")  # ModelOpt's file, when it is within config.json
    if not method and (inner.fields or scheme.value("quant_algo")):
        method = "modelopt"
    read = METHODS.get(method)
    if read is None:
        return _unknown(method or "unnamed", "its format is not known here")
    return read(inner if inner.fields else scheme)


def _unknown(method: str, why: str) -> Quantization:
    return Quantization(method, unknown=f"quantization by {method}: {why}")


def _skipped(scheme: ConfigValues) -> tuple[str, ...]:
    """Return what stays in 16 bit. Raises ConfigError for a pattern that cannot be tried."""
    patterns: list[str] = []
    for field in SKIPPED:
        patterns += [checked(scheme, field, pattern) for pattern in scheme.words(field)]
    return tuple(patterns)


def checked(scheme: ConfigValues, field: str, pattern: str) -> str:
    """Return the pattern. Raises ConfigError where it is no regular expression, or a slow one."""
    if not pattern.startswith(REGULAR):
        return TEXT_PART.sub("model.", pattern)
    if not _is_simple(pattern.removeprefix(REGULAR)):
        raise scheme.odd(field, pattern, "a simple regular expression after re:")
    return pattern


def _is_simple(pattern: str) -> bool:
    """Whether it is a regular expression, and certain to be a fast one."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError):
        return False
    repetitions = sum(pattern.count(sign) for sign in "*+{")
    if repetitions > MOST_REPETITIONS or len(pattern) > LONGEST_PATTERN:
        return False
    return REPEATED_GROUP.search(pattern) is None


def _fp8(scheme: ConfigValues) -> Quantization:
    sides = scheme.wholes("weight_block_size")
    skipped = _skipped(scheme)
    if not sides:
        return Quantization("fp8", ((ALL, Format(INT8)),), skipped)
    if len(sides) != 2 or not all(sides):  # noqa: PLR2004 - rows and columns
        raise scheme.odd("weight_block_size", list(sides), "two numbers of at least 1")
    block = (sides[0], sides[1])
    form = Format(INT8, block=block)
    return Quantization("fp8", ((ALL, form),), skipped)


def _row_scales(scheme: ConfigValues) -> Quantization:
    """FP8 with a scale for each output."""
    form = Format(INT8, scale_bits=FULL_SCALE)
    return Quantization("fbgemm_fp8", ((ALL, form),), _skipped(scheme))


def _integers(scheme: ConfigValues) -> Quantization:
    """AWQ, GPTQ, AutoRound: integers in groups, each with a scale and a packed zero."""
    method = scheme.word("quant_method").lower()
    bits = _bits(scheme, "bits", "w_bit")
    if bits is None and method.startswith("awq"):
        bits = INT4
    if bits is None:
        return _unknown(method, "the file does not say how many bits")
    group = _group(scheme, INT4_GROUP)
    skipped = [*_skipped(scheme)]
    formats: list[ModuleFormat] = []
    for module, own_bits in _exceptions(scheme):
        if own_bits is None or own_bits >= MOST_BITS:
            skipped.append(module)
        else:
            own_format = Format(own_bits, group=group, scale_bits=SCALE + own_bits)
            formats.append(((module,), own_format))
    common_format = Format(bits, group=group, scale_bits=SCALE + bits)
    formats.append((ALL, common_format))
    return Quantization(method, tuple(formats), tuple(skipped), head=scheme.flag("lm_head"))


def _exceptions(scheme: ConfigValues) -> list[tuple[str, int | None]]:
    """Return patterns of modules with bits of their own; None: not quantized."""
    exceptions: list[tuple[str, int | None]] = []
    modules = scheme.part("extra_config")  # AutoRound's, by name
    for name in modules.fields:
        bits = _bits(modules.part(name), "bits")
        if bits is not None:
            exceptions.append((checked(scheme, "extra_config", name), bits))
    patterns = scheme.part("dynamic")  # GPTQModel's: `-:` before a pattern takes modules out
    for name in patterns.fields:
        expression = name.removeprefix("-:").removeprefix("+:")
        pattern = checked(scheme, "dynamic", REGULAR + expression)
        if name.startswith("-:"):
            exceptions.append((pattern, None))
            continue
        bits = _bits(patterns.part(name), "bits")
        if bits is not None:
            exceptions.append((pattern, bits))
    return exceptions


def _bits(scheme: ConfigValues, *names: str) -> int | None:
    bits = scheme.whole(*names, least=1)
    if bits is not None and bits > MOST_BITS:
        raise scheme.odd(names[0], bits, f"at most {MOST_BITS}")
    return bits


def _group(scheme: ConfigValues, otherwise: int) -> int:
    """Return the inputs that share a scale; -1 in a file means all, 0 here."""
    if str(scheme.value("group_size")) == "-1":
        return 0
    group = scheme.whole("group_size", "q_group_size")
    return otherwise if group is None else group


def _mxfp4(scheme: ConfigValues) -> Quantization:
    form = Format(INT4, group=MXFP4_GROUP, scale_bits=SMALL_SCALE)
    skipped = _skipped(scheme)
    return Quantization("mxfp4", ((ALL, form),), skipped, only_experts=True, pads_experts=True)


def _bitsandbytes(scheme: ConfigValues) -> Quantization:
    skipped = _skipped(scheme)
    if scheme.flag("load_in_8bit"):
        form = Format(INT8, scale_bits=FULL_SCALE)
        return Quantization("bitsandbytes", ((ALL, form),), skipped)
    if not scheme.flag("load_in_4bit", otherwise=True):
        return _unknown("bitsandbytes", "neither load_in_4bit nor load_in_8bit is set")
    # A scale of 64 weights has 32 bits, or 8 where scales are quantized, too; vLLM does either.
    single = INT4 + FULL_SCALE / NF4_GROUP
    double = INT4 + (SMALL_SCALE + FULL_SCALE / NF4_DOUBLE_GROUP) / NF4_GROUP
    form = Format(double, most_bits=single)
    return Quantization("bitsandbytes", ((ALL, form),), skipped)


def _compressed_tensors(scheme: ConfigValues) -> Quantization:
    method = "compressed-tensors"
    groups = scheme.part("config_groups")
    named_formats: list[ModuleFormat] = []
    class_formats: list[ModuleFormat] = []
    for name in groups.fields:
        group = groups.part(name)
        weights = group.part("weights")
        if not weights.fields:  # a group of activations or of the KV cache
            continue
        form = _tensor_format(weights, group.word("format") or scheme.word("format"))
        if form is None:
            return _unknown(method, f"config_groups.{name}.weights lacks num_bits")
        targets = group.words("targets")
        names = [checked(group, "targets", target) for target in targets if target != "Linear"]
        # A target is a class of layers, or names; a name counts before a class.
        if names and "Linear" not in targets:
            named_formats.append((tuple(names), form))
        else:
            class_formats.append((ALL, form))
    if not named_formats and not class_formats:
        return _unknown(method, "the file lacks config_groups")
    return Quantization(method, (*named_formats, *class_formats), _skipped(scheme))


def _tensor_format(weights: ConfigValues, form: str) -> Format | None:
    """Return the format of a group's weights; None where it names no width."""
    bits = _bits(weights, "num_bits")
    if bits is None:
        return None
    strategy = weights.word("strategy")
    sides = _block_sides(weights)
    if strategy == "block" and len(sides) == 2 and all(sides):  # noqa: PLR2004 - as above
        return Format(bits, block=(sides[0], sides[1]))
    if "nvfp4" in form or strategy == "tensor_group":
        return Format(bits, group=_group(weights, NVFP4_GROUP), scale_bits=SMALL_SCALE)
    if "mxfp4" in form:
        return Format(bits, group=MXFP4_GROUP, scale_bits=SMALL_SCALE)
    zero_bits = 0 if weights.flag("symmetric", otherwise=True) else bits
    if strategy == "group" or weights.value("group_size") not in (None, -1):
        return Format(bits, group=_group(weights, INT4_GROUP), scale_bits=SCALE + zero_bits)
    return Format(bits, scale_bits=FULL_SCALE)


def _block_sides(weights: ConfigValues) -> tuple[int, ...]:
    """Return (rows, columns) of a block; () where it is not said, or in unknown words."""
    structure = weights.value("block_structure")
    if structure == "128x128":
        return (128, 128)
    if isinstance(structure, str):
        return ()
    return weights.wholes("block_structure")


def _modelopt(scheme: ConfigValues) -> Quantization:
    named = scheme.word("quant_method").upper().removeprefix("MODELOPT").removeprefix("_")
    algorithm = scheme.word("quant_algo").upper() or named
    skipped = _skipped(scheme)
    form = _modelopt_format(algorithm, scheme)
    if form is not None:
        return Quantization("modelopt", ((ALL, form),), skipped)
    if algorithm not in ("MIXED_PRECISION", "MIXED"):
        return _unknown("modelopt", f"quant_algo {algorithm or 'is not named'}")
    layers = scheme.part("quantized_layers")
    formats: list[ModuleFormat] = []
    for name in layers.fields:
        layer = layers.part(name)
        form = _modelopt_format(layer.word("quant_algo").upper(), layer)
        if form is None:
            return _unknown("modelopt", f"quantized_layers.{name} has no known quant_algo")
        formats.append(((name,), form))
    if not formats:
        return _unknown("modelopt", "MIXED_PRECISION without quantized_layers")
    return Quantization("modelopt", tuple(formats), skipped)


# ModelOpt's names of formats; their groups are of so many inputs where a file does not say.
MODELOPT: Final = {
    "FP8": Format(INT8),
    "W8A8_SQ_PER_CHANNEL": Format(INT8, scale_bits=FULL_SCALE),
    "FP8_PER_CHANNEL_PER_TOKEN": Format(INT8, scale_bits=FULL_SCALE),
    "FP8_PB_WO": Format(INT8, block=(128, 128)),
    "FP8_PB_REAL": Format(INT8, block=(128, 128)),
    "MXFP8": Format(INT8, group=MXFP4_GROUP, scale_bits=SMALL_SCALE),
    "MXFP4": Format(INT4, group=MXFP4_GROUP, scale_bits=SMALL_SCALE),
    "W4A8_MXFP4_FP8": Format(INT4, group=MXFP4_GROUP, scale_bits=SMALL_SCALE),
    "W4A16_AWQ": Format(INT4, group=INT4_GROUP, scale_bits=SCALE),
    "W4A8_AWQ": Format(INT4, group=INT4_GROUP, scale_bits=SCALE),
    "INT4_AWQ": Format(INT4, group=INT4_GROUP, scale_bits=SCALE),
    "FP4": Format(INT4, group=NVFP4_GROUP, scale_bits=SMALL_SCALE),
    "NVFP4": Format(INT4, group=NVFP4_GROUP, scale_bits=SMALL_SCALE),
    "NVFP4_AWQ": Format(INT4, group=NVFP4_GROUP, scale_bits=SMALL_SCALE),
    "W4A16_NVFP4": Format(INT4, group=NVFP4_GROUP, scale_bits=SMALL_SCALE),
}


def _modelopt_format(algorithm: str, scheme: ConfigValues) -> Format | None:
    form = MODELOPT.get(algorithm)
    if form is None or not form.group:
        return form
    return replace(form, group=_group(scheme, form.group))


def _nvfp4(scheme: ConfigValues) -> Quantization:
    form = Format(INT4, group=_group(scheme, NVFP4_GROUP), scale_bits=SMALL_SCALE)
    return Quantization("nvfp4", ((ALL, form),), _skipped(scheme))


METHODS: Final[dict[str, Callable[[ConfigValues], Quantization]]] = {
    "fp8": _fp8,
    "fbgemm-fp8": _row_scales,
    "ptpc-fp8": _row_scales,
    "awq": _integers,
    "awq-marlin": _integers,
    "gptq": _integers,
    "gptq-marlin": _integers,
    "auto-round": _integers,
    "intel/auto-round": _integers,
    "mxfp4": _mxfp4,
    "gpt-oss-mxfp4": _mxfp4,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
    "modelopt-fp4": _modelopt,
    "modelopt-mixed": _modelopt,
    "nvfp4": _nvfp4,
}
