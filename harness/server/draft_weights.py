"""What speculative decoding adds to a model: an EAGLE head, its own extra layers, or a model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from harness.memory.weights import (
    ONE_GPU,
    VOCABULARY_STEP,
    Kind,
    Matrix,
    Shard,
    WeightPlan,
    Weights,
    loaded_weights,
    round_up,
)
from harness.server.config_values import Config, ConfigValues
from harness.server.model_config import model_shape
from harness.server.model_weights import UnknownWeightsError, weight_plan

if TYPE_CHECKING:
    from harness.memory.parallel import Parallel

STATES_OF_EAGLE3: Final = 3  # hidden states of the model that its head reads
READ_TWICE: Final = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
RANGE: Final = "An EAGLE head shares the model's embeddings (and head), or has its own."


def draft_weights(draft: Config, model: Config, parallel: Parallel = ONE_GPU) -> Weights:
    """Return what a draft model adds to a model, both by their config.json.

    An EAGLE head has a few layers and a matrix that joins states; whether it shares the model's
    embeddings and head is the range. Any other draft model is loaded whole. Raises ConfigError
    like `model_shape`.
    """
    try:
        plan = weight_plan(draft)
    except UnknownWeightsError as error:
        return Weights(notes=(str(error),))
    hidden = model_shape(model).hidden
    if not is_eagle(draft, hidden):
        return loaded_weights(plan, parallel)
    draft_hidden = model_shape(draft).hidden
    if _is_eagle3(draft):
        joined = Matrix("fc", STATES_OF_EAGLE3 * hidden, draft_hidden)
        head = _own_head(draft, draft_hidden)
        layers = tuple(map(_reads_two_states, plan.layers))
        sharing = replace(_eagle(plan, joined, *head), layers=layers)
        with_own = replace(sharing, embeddings=plan.embeddings)
    else:
        joined = Matrix("fc", hidden + draft_hidden, draft_hidden)
        sharing = _eagle(plan, joined)
        last = (*sharing.last, *plan.last)
        with_own = replace(sharing, embeddings=plan.embeddings, last=last)
    least = loaded_weights(sharing, parallel)
    most = loaded_weights(with_own, parallel)
    return replace(least, most_all_gpus=most.all_gpus, most_one_gpu=most.one_gpu, notes=(RANGE,))


def extra_layers_weights(model: Config, parallel: Parallel = ONE_GPU) -> Weights:
    """Return what the layers add that a model brings for multi-token prediction (MTP).

    Each is like the model's last layer, with a matrix that joins two states; embeddings and head
    are the model's.
    """
    shape = model_shape(model)
    try:
        plan = weight_plan(model)
    except UnknownWeightsError as error:
        return Weights(notes=(str(error),))
    joined = Matrix("eh_proj", 2 * shape.hidden, shape.hidden)
    layers = ((*plan.layers[-1], joined),) * shape.draft_layers
    own = replace(_eagle(plan), layers=layers, tables=())
    return loaded_weights(own, replace(parallel, pipeline=1))


def is_eagle(draft: Config, hidden: int) -> bool:
    """Whether a file is of an EAGLE head: by its name, or one layer of the model's own width."""
    if "eagle" in _names(draft) or _is_eagle3(draft):
        return True
    shape = model_shape(draft)
    return shape.layers == 1 and shape.hidden == hidden


def _eagle(plan: WeightPlan, *last: Matrix) -> WeightPlan:
    """Return a head's layers and its own matrices."""
    return replace(plan, embeddings=(), last=last, towers=(), tied=False)


def _reads_two_states(layer: tuple[Matrix, ...]) -> tuple[Matrix, ...]:
    """Return a layer of EAGLE 3: its attention reads a token's embedding and a state."""
    matrices = []
    for matrix in layer:
        inputs = 2 * matrix.inputs if matrix.module in READ_TWICE else matrix.inputs
        matrices.append(replace(matrix, inputs=inputs))
    return tuple(matrices)


def _own_head(draft: Config, hidden: int) -> tuple[Matrix, ...]:
    """Return the head of EAGLE 3, of a vocabulary of its own."""
    values = ConfigValues(draft)
    words = values.whole("draft_vocab_size", "vocab_size") or 0
    size = round_up(words, VOCABULARY_STEP)
    return (Matrix("lm_head", hidden, size, Shard.OUTPUTS, kind=Kind.HALF),)


def _is_eagle3(draft: Config) -> bool:
    if "eagle3" in _names(draft):
        return True
    return ConfigValues(draft).value("draft_vocab_size") is not None


def _names(draft: Config) -> str:
    values = ConfigValues(draft)
    names = [*values.words("architectures"), values.word("model_type")]
    return " ".join(names).lower()
