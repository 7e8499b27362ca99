"""What speculative decoding adds to a model: an EAGLE head, its own extra layers, or a model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from harness.measure.memory.weights import (
    ONE_GPU,
    Matrix,
    WeightPlan,
    Weights,
    loaded_weights,
)
from harness.server.config_values import Config, ConfigValues
from harness.server.model_config import model_shape
from harness.server.model_weights import UnknownWeightsError, weight_plan

if TYPE_CHECKING:
    from harness.measure.memory.parallel import Parallel

STATES_OF_EAGLE3: Final = 3  # hidden states of the model that its head reads
RANGE: Final = "An EAGLE head shares the model's embeddings and head, or has its own."


def draft_weights(draft: Config, model: Config, parallel: Parallel = ONE_GPU) -> Weights:
    """Return what a draft model adds to a model, both by their config.json.

    An EAGLE head has a few layers and a matrix that joins the model's states to the token's; what
    it shares with the model is the range. Any other draft model is loaded whole. Raises
    ConfigError like `model_shape`.
    """
    try:
        plan = weight_plan(draft)
    except UnknownWeightsError as error:
        return Weights(notes=(str(error),))
    hidden = model_shape(model).hidden
    if not is_eagle(draft, hidden):
        return loaded_weights(plan, parallel)
    own = model_shape(draft).hidden
    states = STATES_OF_EAGLE3 * hidden if "eagle3" in _names(draft) else hidden + own
    joined = Matrix("fc", states, own)
    least = loaded_weights(_only_layers(plan, joined), parallel)
    most = loaded_weights(replace(plan, last=(joined, *plan.last)), parallel)
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
    return loaded_weights(replace(_only_layers(plan), layers=layers), replace(parallel, pipeline=1))


def is_eagle(draft: Config, hidden: int) -> bool:
    """Whether a file is of an EAGLE head: by its name, or one layer of the model's own width."""
    if "eagle" in _names(draft):
        return True
    shape = model_shape(draft)
    return shape.layers == 1 and shape.hidden == hidden


def _only_layers(plan: WeightPlan, *last: Matrix) -> WeightPlan:
    return replace(plan, embeddings=(), last=last, tables=(), towers=(), tied=False)


def _names(draft: Config) -> str:
    values = ConfigValues(draft)
    return " ".join((*values.words("architectures"), values.word("model_type"))).lower()
