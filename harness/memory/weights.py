"""The bytes of a model's weights, of all GPUs and of the one that has most, as vLLM loads them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import Enum
from math import ceil
from typing import TYPE_CHECKING, Final

from harness.memory.model_shape import stage_layers
from harness.memory.parallel import Parallel
from harness.memory.quantization import HALF, Quantization

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

VOCABULARY_STEP: Final = 64  # vLLM pads the vocabulary to a multiple
PADDED_HIDDEN: Final = 256  # experts in MXFP4: kernels want multiples of these
PADDED_INNER: Final = 128


class Shard(Enum):
    """How tensor parallelism divides a matrix."""

    WHOLE = "each GPU has all of it"
    OUTPUTS = "each GPU has some outputs"
    INPUTS = "each GPU has some inputs"
    KV_HEADS = "each GPU has some KV heads, at least one"
    EXPERT_OUTPUTS = "of each expert some outputs, or some experts whole"
    EXPERT_INPUTS = "of each expert some inputs, or some experts whole"


class Kind(Enum):
    """How a matrix is stored."""

    LINEAR = "quantized where the model is"
    HALF = "16 bit in any model"
    COPY = "16 bit, made by vLLM of a matrix that is quantized, beside it"
    TABLE = "16 bit, computed by vLLM"


EXPERT_SHARDS: Final = (Shard.EXPERT_OUTPUTS, Shard.EXPERT_INPUTS)
MADE_BY_VLLM: Final = (Kind.COPY, Kind.TABLE)
OUTPUT_SHARDS: Final = (Shard.OUTPUTS, Shard.EXPERT_OUTPUTS)


@dataclass(frozen=True, slots=True)
class Matrix:
    """Equal matrices (or vectors: one input) of a layer."""

    module: str  # within the layer, as checkpoints name it
    inputs: int
    outputs: int
    shard: Shard = Shard.WHOLE
    count: int = 1
    kind: Kind = Kind.LINEAR
    unit: int = 1  # outputs that stay together: a KV head

    @property
    def parameters(self) -> int:
        """All values of it that a checkpoint has."""
        made = self.kind in MADE_BY_VLLM
        return 0 if made else self.inputs * self.outputs * self.count


ONE_GPU: Final = Parallel()


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """All matrices of a model, by where pipeline stages put them."""

    layers: tuple[tuple[Matrix, ...], ...]
    embeddings: tuple[Matrix, ...]  # on the first stage; tied: on the last one, too
    last: tuple[Matrix, ...]  # the last norm and the head
    tied: bool = False
    tables: tuple[Matrix, ...] = ()  # of rotary positions: on every GPU
    towers: tuple[Matrix, ...] = ()  # vision: on every stage
    quantization: Quantization = field(default_factory=Quantization)
    chosen_share: float = 1.0  # of the experts' parameters, those that multiply a token
    notes: tuple[str, ...] = ()  # what is left out of the matrices
    most_more_bytes: float | None = 0.0  # of what is left out; None: not known

    def every(self) -> Iterable[Matrix]:
        """All matrices, each once."""
        for layer in self.layers:
            yield from layer
        yield from (*self.embeddings, *self.last, *self.tables, *self.towers)


@dataclass(frozen=True, slots=True)
class Weights:
    """What loaded weights take, in bytes; None: not known, and `notes` say why."""

    all_gpus: float | None = None
    one_gpu: float | None = None  # the GPU that has most
    most_all_gpus: float | None = None  # where the file leaves a choice, the most
    most_one_gpu: float | None = None
    in_files: float | None = None  # one copy, without padding
    parameters: float | None = None
    active_parameters: float | None = None  # as models' cards count those of a token of text
    prompt_parameters: float | None = None  # of them, those that multiply a token of a prompt
    output_parameters: float | None = None  # and a token of an answer
    notes: tuple[str, ...] = ()

    def from_files(self, stored_bytes: float, parallel: Parallel) -> Weights:
        """Return what files of so many bytes take, divided and padded as the matrices are."""
        if not self.in_files or self.all_gpus is None:
            return self._evenly(stored_bytes * parallel.data, parallel)
        known = self.given(self.all_gpus * stored_bytes / self.in_files, parallel)
        more_all, more_one = self._choices()
        return replace(
            known,
            most_all_gpus=(known.all_gpus or 0) * more_all,
            most_one_gpu=(known.one_gpu or 0) * more_one,
            in_files=stored_bytes,
        )

    def given(self, all_gpus: float, parallel: Parallel) -> Weights:
        """Return a size that is known, of all GPUs, divided as the matrices are."""
        if not self.all_gpus or self.one_gpu is None:
            return self._evenly(all_gpus, parallel)
        one_gpu = self.one_gpu * all_gpus / self.all_gpus
        return self._known(all_gpus, one_gpu)

    def _evenly(self, all_gpus: float, parallel: Parallel) -> Weights:
        """The same where the matrices are not known."""
        return self._known(all_gpus, all_gpus / parallel.gpus)

    def _known(self, all_gpus: float, one_gpu: float) -> Weights:
        return replace(
            self,
            all_gpus=all_gpus,
            one_gpu=one_gpu,
            most_all_gpus=all_gpus,
            most_one_gpu=one_gpu,
            notes=(),
        )

    def _choices(self) -> tuple[float, float]:
        """Return how many times the least the most is, of all GPUs and of the fullest one.

        Only where formats leave a choice: the size of files has what the shape left out.
        """
        if self.notes or not self.all_gpus or not self.one_gpu:
            return 1.0, 1.0
        if self.most_all_gpus is None or self.most_one_gpu is None:
            return 1.0, 1.0
        return self.most_all_gpus / self.all_gpus, self.most_one_gpu / self.one_gpu


def loaded_weights(plan: WeightPlan, parallel: Parallel = ONE_GPU) -> Weights:
    """Return what the plan's matrices take on so many GPUs."""
    in_files = _stages(plan, ONE_GPU, loaded=False, most=False)
    least = _stages(plan, parallel, loaded=True, most=False)
    most = _stages(plan, parallel, loaded=True, most=True)
    ranks = parallel.tensor * parallel.data
    active = _active_parameters(plan)
    most_all_gpus = None
    most_one_gpu = None
    left_out = plan.most_more_bytes
    if left_out is not None:
        most_all_gpus = sum(most) * ranks + left_out * ranks
        most_one_gpu = max(most) + left_out
    return Weights(
        all_gpus=sum(least) * ranks,
        one_gpu=max(least),
        most_all_gpus=most_all_gpus,
        most_one_gpu=most_one_gpu,
        in_files=sum(in_files),
        parameters=float(_parameters(plan.every())),
        active_parameters=active,
        prompt_parameters=active - _parameters(plan.embeddings) - _parameters(plan.last),
        output_parameters=active - _looked_up(plan),
        notes=plan.notes,
    )


def _parameters(matrices: Iterable[Matrix]) -> int:
    return sum(matrix.parameters for matrix in matrices)


def _active_parameters(plan: WeightPlan) -> float:
    """Those that multiply a token of text: of experts the chosen ones, of towers none."""
    of_experts = _parameters(matrix for matrix in plan.every() if matrix.shard in EXPERT_SHARDS)
    idle = of_experts * (1 - plan.chosen_share)
    of_all = float(_parameters(plan.every()))
    of_towers = _parameters(plan.towers)
    return of_all - idle - of_towers


def _looked_up(plan: WeightPlan) -> int:
    """Of a table from which a token takes a row: nothing is multiplied, unless it is the head too.

    The head multiplies the last token of a prompt only, and each token of an answer.
    """
    return 0 if plan.tied else _parameters(plan.embeddings)


def _stages(plan: WeightPlan, parallel: Parallel, loaded: bool, most: bool) -> list[float]:
    """Return the bytes of one GPU on each pipeline stage."""
    counted = _Sizes(plan.quantization, parallel, loaded, most)
    stages = []
    first = 0
    counts = stage_layers(len(plan.layers), parallel.pipeline)
    for stage, count in enumerate(counts):
        size = counted.layers(first, plan.layers[first : first + count])
        size += counted.parts("", (*plan.tables, *plan.towers))
        is_last = stage == len(counts) - 1
        if stage == 0 or (plan.tied and is_last):
            size += counted.parts("", plan.embeddings)
        if is_last:
            size += counted.parts("", plan.last)
        stages.append(size)
        first += count
    return stages


@dataclass(frozen=True)
class _Sizes:
    """Adds up matrices of one GPU."""

    quantization: Quantization
    parallel: Parallel
    loaded: bool
    most: bool

    def layers(self, first: int, layers: Sequence[tuple[Matrix, ...]]) -> float:
        """Return the bytes of layers, of equal ones once where no file names one by its number."""
        if self.quantization.names_modules:
            numbered = enumerate(layers, first)
            return sum(self.parts(f"model.layers.{number}.", layer) for number, layer in numbered)
        total = 0.0
        for layer, times in Counter(layers).items():
            total += times * self.parts("model.layers.0.", layer)
        return total

    def parts(self, prefix: str, matrices: Iterable[Matrix]) -> float:
        return sum(self._bytes(prefix + matrix.module, matrix) for matrix in matrices)

    def _bytes(self, module: str, matrix: Matrix) -> float:
        if matrix.kind in MADE_BY_VLLM and not self.loaded:
            return 0.0
        expert = matrix.shard in EXPERT_SHARDS
        form = HALF
        if matrix.kind is Kind.LINEAR:
            form = self.quantization.format_of(module, expert)
        elif matrix.kind is Kind.COPY:
            original = self.quantization.format_of(module, expert)
            if original is HALF:
                return 0.0  # a copy is made of a quantized matrix only
        inputs, outputs, count = shard_sizes(matrix, self.parallel)
        linear_expert = expert and matrix.kind is Kind.LINEAR
        if linear_expert and self.loaded and self.quantization.pads_experts:
            inputs, outputs = self._padded(matrix, inputs, outputs)
        if self.most:
            return form.most_bytes_of(inputs, outputs) * count
        return form.bytes_of(inputs, outputs) * count

    def _padded(self, matrix: Matrix, inputs: int, outputs: int) -> tuple[int, int]:
        """Return an expert's sizes as kernels of MXFP4 want them, Triton's or Marlin's (most)."""
        inner = PADDED_INNER if self.most else 1
        if matrix.shard is Shard.EXPERT_OUTPUTS:
            return round_up(inputs, PADDED_HIDDEN), round_up(outputs, inner)
        return round_up(inputs, inner), round_up(outputs, PADDED_HIDDEN)


def shard_sizes(matrix: Matrix, parallel: Parallel) -> tuple[int, int, int]:
    """Return inputs, outputs and number of a matrix on one GPU."""
    inputs = matrix.inputs
    outputs = matrix.outputs
    count = matrix.count
    if matrix.shard is Shard.WHOLE:
        return inputs, outputs, count
    if matrix.shard is Shard.KV_HEADS:
        # Where there are more GPUs than heads, each has a whole one.
        heads = max(ceil(outputs / parallel.tensor), matrix.unit)
        return inputs, heads, count
    gpus = parallel.tensor
    if matrix.shard in EXPERT_SHARDS:
        gpus *= parallel.data
        if parallel.expert:
            return inputs, outputs, ceil(count / gpus)
    if matrix.shard in OUTPUT_SHARDS:
        return inputs, ceil(outputs / gpus), count
    return ceil(inputs / gpus), outputs, count


def round_up(number: int, step: int) -> int:
    """Return the next multiple."""
    return ceil(number / step) * step
