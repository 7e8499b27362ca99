"""The first sentence of `vllm-harness fit`: yes, no or unknown, what decides, what to try."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING

from harness.memory.parallel import divides_heads
from harness.memory.verdict import Why

if TYPE_CHECKING:
    from harness.capacity.fit_answer import Facts
    from harness.capacity.fit_question import Question

GB = 1e9
GIB = 1 << 30
MOST_GPUS = 64
ANSWERS = {True: "Yes", False: "No", None: "Unknown"}


def gb(size: float | None) -> str:
    """Return a size in both units, each by its name."""
    if size is None or isnan(size):
        return "unknown"
    return f"{size / GB:,.2f} GB ({size / GIB:,.2f} GiB)"


def plural(number: int, word: str) -> str:
    """Return `1 GPU`, `2 GPUs`."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def sentence(question: Question, facts: Facts) -> str:
    """Return the verdict in words."""
    why = Why(facts["why"])
    if why is Why.SHAPE:
        return f"No: {question.division_fault}"
    if why is Why.OVERFLOW:
        return _overflow(question, facts)
    if why is Why.START:
        return _start(question, facts)
    word = ANSWERS[facts["fits"]]
    return f"{word}: {_need(question, facts)}; {_there_are(question, facts, why)}."


def _need(question: Question, facts: Facts) -> str:
    need = facts["need_blocks"]
    if facts["fits"] is None and _start_blocks(question) > need:
        return _promised(question, facts)
    requests = plural(facts["requests"], "request")
    verb = "needs" if facts["requests"] == 1 else "need"
    return f"{requests}, {facts['request_tokens']:,} tokens, {verb} {_blocks(need, facts)}"


def _blocks(number: int, facts: Facts) -> str:
    """Return `2 KV blocks, 0.01 GB (0.00 GiB)`; the size where it is known."""
    size = f", {gb(number * facts['block_bytes'])}" if facts["block_bytes"] else ""
    return f"{plural(number, 'KV block')}{size}"


def _there_are(question: Question, facts: Facts, why: Why) -> str:
    """Say how many blocks there are, and how many slots."""
    if why is Why.NO_WEIGHTS:
        notes = "".join(f": {note}" for note in question.weights.notes)
        return (
            "how many there are is not known, because the size of the weights is not"
            f"{notes}; try --weights or --kv-memory, in GB"
        )
    if why is Why.NO_MEMORY and question.server:
        return (
            "how many there are is not known, because the server's /metrics does not say; try "
            "--config with --gpu, or --kv-memory in GB"
        )
    if why is Why.NO_MEMORY:
        return (
            "how many there are is not known, because the memory of a GPU is not; try --gpu, "
            "or --memory or --kv-memory, in GB"
        )
    slots = f", and {question.slots:,} slots" if question.slots else ""
    if facts["kv_blocks"] is None:
        return f"how many there are is not known{slots}"
    if why is Why.RESERVE:
        return _range(question, facts)
    engines = f" in each of {question.parallel.data} engines" if question.parallel.data > 1 else ""
    return f"there are {facts['kv_blocks']:,}{engines}{_pool(facts)}{slots}"


def _pool(facts: Facts) -> str:
    return f", {gb(facts['kv_pool_bytes'])}" if facts["kv_pool_bytes"] else ""


def _range(question: Question, facts: Facts) -> str:
    least, most = facts["kv_blocks_range"]
    if isnan(question.budget.most_weights):
        notes = "; ".join(question.weights.notes)
        return (
            f"there are at most {most:,}, as weights are left out ({notes}); try --weights, in GB"
        )
    if question.budget.most_weights > question.budget.weights:
        return (
            f"there are {least:,} to {most:,}, by the format of the weights and what vLLM keeps "
            "for itself; try --weights and --reserve, or --kv-memory, in GB"
        )
    reserve = question.budget.reserve
    return (
        f"there are {least:,} to {most:,}, as vLLM keeps {reserve.least / GB:,.1f} to "
        f"{reserve.most / GB:,.1f} GB of each GPU for itself; try --reserve or --kv-memory, in GB, "
        "as a start showed it"
    )


def _overflow(question: Question, facts: Facts) -> str:
    budget = question.budget
    gpus = question.parallel.gpus
    parts = []
    if not isnan(budget.weights):
        parts.append(f"weights of {gb(facts['weight_bytes'])}")
    if budget.kv_given is not None:
        parts.append(f"a KV cache of {gb(budget.kv_given * gpus)}")
    reserve = f"a reserve of {gb(budget.reserve.least * gpus)}"
    return (
        f"No: {', '.join(parts)} and {reserve} do not fit in {_overflowed(question, facts)} of "
        f"{plural(gpus, 'GPU')}; try {_more_room(question)}."
    )


def _overflowed(question: Question, facts: Facts) -> str:
    """The memory in words: all of it where the KV cache is given, else what vLLM takes."""
    budget = question.budget
    if budget.kv_given is not None:
        return f"the {gb(facts['memory_bytes'])}"
    taken = f"the {gb(budget.taken * question.parallel.gpus)}"
    if budget.utilization < 1:
        return f"{taken} that vLLM takes ({budget.utilization:.0%})"
    return taken


def _more_room(question: Question) -> str:
    """The fewest GPUs, doubled, whose memory weights and the rest may leave some of, or what else.

    Reserve and `--kv-memory` are of each GPU: more of them do not help where these alone are more
    than one has.
    """
    budget = question.budget
    if budget.kv_given is None:
        room = budget.taken - budget.reserve.least
        otherwise = "a GPU with more memory"
    else:
        room = budget.memory - budget.reserve.least - budget.kv_given
        otherwise = "less --kv-memory"
    undivided_weights = budget.weights * question.parallel.tensor
    tensor = 2 * question.parallel.tensor
    while tensor <= MOST_GPUS:
        if undivided_weights / tensor < room and _divides(tensor, question):
            return f"--tensor-parallel {tensor}"
        tensor *= 2
    return otherwise


def _divides(tensor: int, question: Question) -> bool:
    return question.shape is None or divides_heads(tensor, question.shape)


def _start(question: Question, facts: Facts) -> str:
    longest = facts["longest_start"]
    remedy = f"--max-model-len {longest}" if longest else "more --tensor-parallel"
    return (
        f"No: {_promised(question, facts)}; there are {facts['kv_blocks']:,}{_pool(facts)}, and "
        f"vLLM does not start without room for it; try {remedy}."
    )


def _start_blocks(question: Question) -> int:
    return question.layout.request_blocks(question.must_hold) if question.must_hold else 0


def _promised(question: Question, facts: Facts) -> str:
    return (
        f"one request of --max-model-len, {question.must_hold or 0:,} tokens, needs "
        f"{_blocks(_start_blocks(question), facts)}"
    )
