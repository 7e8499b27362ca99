"""The figures of `vllm-harness fit`, of all GPUs together unless a name says otherwise.

None where something is not known: nothing that follows from it is guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isnan, nan
from typing import TYPE_CHECKING, Any, Final

from harness.memory.bounds import compute_tokens_per_s, decode_tokens_per_s
from harness.memory.budget import Span
from harness.memory.verdict import Room, Verdict, Why, judge

if TYPE_CHECKING:
    from harness.capacity.fit_question import Question, Server

DIFFERS: Final = 0.01  # of the server's own figure: beyond that it is said
FIRST_CONTEXT: Final = 1024  # of the envelope; each next one is twice as long
CONTEXTS: Final = 8
LONGEST_CONTEXT: Final = 1 << 17  # where the model's limit is not known

Facts = dict[str, Any]  # by the names of fit's --json


@dataclass(frozen=True, slots=True)
class Own:
    """What a server says of its KV cache, beside what we compute of its blocks."""

    kv_tokens: int
    concurrency: float
    computed_tokens: int
    factor: float  # the server's figure by ours
    differs: bool


def answer(question: Question) -> Facts:
    """Return every figure of the answer."""
    own = _own_figures(question)
    room = _room(question, own)
    verdict = _verdict(question, room)
    pool = _pool_bytes(question, room)
    speeds = Speeds(question)
    blocks = room.likely if room else None
    facts: Facts = {"fits": verdict.fits, "why": verdict.why.value}
    facts |= _requests(question)
    facts |= _memory(question, pool)
    facts |= _kv_cache(question, room, pool)
    if own:
        facts |= _server_figures(own)
    facts["user"] = speeds.row(question.context, blocks)
    contexts = _contexts(question)
    facts["envelope"] = [speeds.row(tokens, blocks) for tokens in contexts]
    facts["prefill_tokens_per_s"] = _number(speeds.prefill)
    facts["decode_tokens_per_s"] = _number(speeds.of_one_user())
    return facts


def _own_figures(question: Question) -> Own | None:
    """Compare the server's figure with ours; None without a server, a shape or its figure."""
    server = question.server
    limit = question.max_model_len
    if not server or not question.shape or not limit:
        return None
    if not server.blocks or not server.kv_tokens:
        return None
    requests = question.layout.concurrency(server.blocks, limit)
    computed = int(requests * limit)
    factor = server.kv_tokens / max(computed, 1)
    return Own(
        kv_tokens=server.kv_tokens,
        concurrency=server.concurrency or server.kv_tokens / limit,
        computed_tokens=computed,
        factor=factor,
        differs=abs(factor - 1) > DIFFERS,
    )


def _room(question: Question, own: Own | None) -> Room | None:
    """The blocks of one engine; None: not known."""
    if question.server and question.server.blocks:
        blocks = _server_blocks(question, question.server)
        if own and own.differs:  # so that as many requests fit as the server says
            blocks = round(blocks * own.factor)
        return Room(blocks, blocks, blocks)
    kv = question.budget.kv
    if question.shape is None or not kv.known:
        return None
    return Room(
        least=0 if isnan(kv.least) else _blocks_in(question, kv.least),
        likely=_blocks_in(question, kv.likely),
        most=_blocks_in(question, kv.most),
    )


def _blocks_in(question: Question, gpu_bytes: float) -> int:
    """The blocks of one engine whose GPUs each have so many bytes for them."""
    stages = question.parallel.pipeline
    return question.layout.blocks_in([gpu_bytes] * stages)


def _server_blocks(question: Question, server: Server) -> int:
    """The server's blocks; without a configuration those that its tokens fill.

    Layers with windows are in several groups of blocks, and only a configuration says in how many.
    """
    if question.shape is None and server.kv_tokens:
        return server.kv_tokens // question.layout.block_tokens
    return server.blocks or 0


def _verdict(question: Question, room: Room | None) -> Verdict:
    requests = sum(times for _, times in question.requests)
    if question.slots and requests > question.slots * question.parallel.data:
        return Verdict(False, Why.SLOTS)
    measured = question.server is not None
    if question.division_fault and not measured:
        return Verdict(False, Why.SHAPE)
    if question.budget.overflows and not measured:
        return Verdict(False, Why.OVERFLOW)
    # What is not known is never a yes (docs/capacity.md).
    if room is None:
        why = Why.NO_WEIGHTS if _lacks_weights(question) else Why.NO_MEMORY
        return Verdict(None, why)
    start_blocks = 0
    if question.must_hold:
        start_blocks = question.layout.request_blocks(question.must_hold)
    return judge(_engine_blocks(question), start_blocks, room)


def _lacks_weights(question: Question) -> bool:
    return isnan(question.weights.one_gpu) and not isnan(question.budget.memory)


def _engine_blocks(question: Question) -> int:
    """What the engine needs that has most to hold; requests are dealt out in turn."""
    engines = question.parallel.data
    needs = [0] * engines
    next_engine = 0
    for tokens, times in question.requests:
        size = question.layout.request_blocks(tokens)
        rounds, left_over = divmod(times, engines)
        needs = [need + rounds * size for need in needs]
        for _ in range(left_over):
            needs[next_engine] += size
            next_engine = (next_engine + 1) % engines
    return max(needs)


def _requests(question: Question) -> Facts:
    requests = question.requests
    layout = question.layout
    count = sum(times for _, times in requests)
    all_tokens = sum(tokens * times for tokens, times in requests)
    blocks = sum(times * layout.request_blocks(tokens) for tokens, times in requests)
    return {
        "requests": count,
        "request_tokens": all_tokens,
        "need_blocks": blocks,
        "max_model_len": question.max_model_len,
        "must_hold": question.must_hold,
    }


def _memory(question: Question, pool: Span) -> Facts:
    """Bytes; a reserve is what neither weights nor KV cache have of what vLLM takes."""
    budget = question.budget
    weights = question.weights
    gpus = question.parallel.gpus
    memory = budget.memory * gpus
    measured = question.server is not None or budget.kv_given is not None
    if measured:
        reserve = _left_over(memory - weights.total - pool.likely)
    elif isnan(memory):
        reserve = _exactly(memory)
    else:
        reserve = _reserve_of_all(question)
    return {
        "gpus": gpus,
        "gpu": question.gpu.source,
        "memory_bytes": _number(memory),
        "gpu_memory_utilization": None if measured else budget.utilization,
        "weight_bytes": _number(weights.total),
        "weights_from": weights.source,
        "weights_notes": list(weights.notes),
        "reserve_bytes": _number(reserve.likely),
        "reserve_bytes_range": [_number(reserve.least), _number(reserve.most)],
        "reserve_from": "left" if measured else question.reserve_source,
        "kv_pool_bytes": _number(pool.likely),
        "kv_pool_bytes_range": [_number(pool.least), _number(pool.most)],
    }


def _exactly(size: float) -> Span:
    return Span(size, size, size)


def _left_over(size: float) -> Span:
    # Less than nothing is left where these are not the GPUs that the server has.
    return _exactly(nan if size < 0 else size)


def _reserve_of_all(question: Question) -> Span:
    reserve = question.budget.reserve
    gpus = question.parallel.gpus
    return Span(reserve.least * gpus, reserve.likely * gpus, reserve.most * gpus)


def _pool_bytes(question: Question, room: Room | None) -> Span:
    """The KV cache of all GPUs."""
    if question.server is not None:
        return _exactly(_server_pool_bytes(question, question.server, room))
    gpus = question.parallel.gpus
    kv = question.budget.kv
    return Span(
        least=_not_negative(kv.least) * gpus,
        likely=_not_negative(kv.likely) * gpus,
        most=_not_negative(kv.most) * gpus,
    )


def _not_negative(size: float) -> float:
    """The size, or 0; NaN stays NaN."""
    return size if isnan(size) else max(size, 0.0)


def _server_pool_bytes(question: Question, server: Server, room: Room | None) -> float:
    if room is None or question.shape is None or not server.blocks:
        return nan
    return server.blocks * question.layout.block_bytes * question.parallel.data


def _kv_cache(question: Question, room: Room | None, pool: Span) -> Facts:
    """Tokens and requests are those of one engine; several have a KV cache each."""
    layout = question.layout
    shape = question.shape
    longest = _longest(question)
    facts = {
        "engines": question.parallel.data,
        "kv_cache_dtype": question.kv_cache_dtype,
        "kv_bytes_per_token": layout.read_bytes(1) if shape else None,
        "layers_by_window": shape.layers_by_window if shape else None,
        "step_tokens": question.step_tokens,
        "step_from": question.step_source,
        "in_flight_tokens": layout.in_flight_tokens,
        "block_tokens": layout.block_tokens,
        "block_bytes": layout.block_bytes,
        "kv_blocks": None,
        "kv_blocks_range": None,
        "kv_tokens": None,
        "kv_concurrency": None,
        "kv_concurrency_of": longest,
        "context_in_blocks": None,
        "context_exact": None,
        "longest_start": None,
        "server": None,
    }
    if room:
        facts |= _room_figures(question, room, pool)
    return facts


def _longest(question: Question) -> int:
    """The request, in tokens, whose concurrency is said."""
    return question.max_model_len or max(_contexts(question))


def _room_figures(question: Question, room: Room, pool: Span) -> Facts:
    """What follows from the number of blocks."""
    engines = question.parallel.data
    layout = question.layout
    blocks = room.likely
    longest = _longest(question)
    concurrency = layout.concurrency(blocks, longest)
    users = ceil((question.users or 1) / engines)
    return {
        "kv_blocks": blocks,
        "kv_blocks_range": [room.least, room.most],
        "kv_tokens": int(concurrency * longest),
        "kv_concurrency": concurrency,
        "context_in_blocks": layout.context_in(blocks, users, question.max_model_len),
        "context_exact": _context_exact(question, users, pool.likely / engines),
        "longest_start": _longest_start(question, blocks),
    }


def _server_figures(own: Own) -> Facts:
    """The server's own figures, in place of ours."""
    return {
        "kv_tokens": own.kv_tokens,
        "kv_concurrency": own.concurrency,
        "server": {
            "kv_tokens": own.kv_tokens,
            "kv_concurrency": own.concurrency,
            "computed_kv_tokens": own.computed_tokens,
            "differs": own.differs,
        },
    }


def _context_exact(question: Question, users: int, engine_bytes: float) -> int | None:
    """The tokens of each user if blocks could be divided; None: a part of the tokens is dropped."""
    if question.layout.has_windows or question.shape is None or isnan(engine_bytes):
        return None
    tokens = int(engine_bytes / users / question.layout.read_bytes(1))
    return min(tokens, question.max_model_len or tokens)


def _longest_start(question: Question, blocks: int) -> int:
    """The longest --max-model-len for which vLLM has room for one request."""
    return question.layout.context_in(blocks, 1, question.max_model_len)


def _contexts(question: Question) -> list[int]:
    """The lengths of the envelope's rows, and that which is asked about."""
    limit = question.max_model_len or LONGEST_CONTEXT
    lengths = [FIRST_CONTEXT << doubled for doubled in range(CONTEXTS)]
    within = (tokens for tokens in lengths if tokens <= limit)
    return sorted({question.context, *within})


class Speeds:
    """Upper bounds of one engine; NaN: not known."""

    def __init__(self, question: Question) -> None:
        ways = question.parallel
        weights = question.weights
        self.question = question
        # matrix products of quantized weights in 8 bit are twice as fast
        faster = 2 if question.shape and question.shape.quantization else 1
        rate = ways.engine_gpus * question.gpu.flops_s * faster
        self.prefill = compute_tokens_per_s(rate, weights.prompt_parameters)
        self.decode = compute_tokens_per_s(rate, weights.output_parameters)
        # a token passes the stages one after the other
        self.bandwidth = ways.tensor * question.bandwidth
        active_share = weights.active_parameters / weights.parameters
        engine_weights = weights.total / ways.data
        # Of a mixture of experts a token reads a share; where that is not known, all of them.
        if isnan(active_share):
            active_share = 1.0
        self.read_bytes = engine_weights * active_share

    def of_one_user(self) -> float:
        """Return a user's tokens/s alone, with an empty context."""
        return self.of_users(1, 0)

    def of_users(self, users: int, context_tokens: int) -> float:
        """Return each one's tokens/s where so many decode on one engine."""
        layout = self.question.layout
        stages = self.question.parallel.pipeline
        kv_bytes = users * layout.read_bytes(context_tokens) / stages
        by_bandwidth = decode_tokens_per_s(self.bandwidth, self.read_bytes, kv_bytes)
        by_compute = self.decode / max(users, 1)
        return min(by_bandwidth, by_compute)

    def row(self, context_tokens: int, blocks: int | None) -> Facts:
        """Return what users of a context get; None for what the KV cache decides and is unknown."""
        question = self.question
        layout = question.layout
        size = layout.request_blocks(context_tokens) * layout.block_bytes
        row: Facts = {
            "context_tokens": context_tokens,
            "users": None,
            "kv_bytes_per_user": size if question.shape else None,
            "tokens_per_s_per_user": None,
        }
        if blocks is None:
            return row
        engine_users = layout.users_in(blocks, context_tokens, question.slots)
        speed = self.of_users(engine_users, context_tokens)
        row["users"] = engine_users * question.parallel.data
        row["tokens_per_s_per_user"] = _number(speed)
        return row


def _number(value: float) -> float | None:
    return None if isnan(value) else value
