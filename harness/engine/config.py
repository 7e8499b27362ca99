"""Configuration of the embedded engine, with vLLM's flag names where vLLM has one."""

from __future__ import annotations

from dataclasses import dataclass

from harness.engine.shapes import MODELS, blocks_that_fit
from harness.errors import ConfigError
from harness.memory.cards import GPUS


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One engine. Raises ConfigError for a configuration that vLLM would refuse, too."""

    model: str = "llama-3.1-8b"
    gpu: str = "h100"
    max_num_seqs: int = 32  # small enough for a laptop to load; vLLM's own default is larger
    max_num_batched_tokens: int = 8192
    max_model_len: int = 8192
    block_size: int = 16
    num_gpu_blocks: int = 0  # 0: as many as the GPU's memory leaves
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    stream_interval: int = 1  # tokens per event
    front_end_ns: int = 0  # per request, before the scheduler sees it
    jitter: float = 0.02  # sigma of the log of each step's time
    time_scale: float = 1.0  # all step times times this: a slower or faster engine
    compute_scale: float = 1.0  # factor on the GPU's matrix rate
    bandwidth_scale: float = 1.0  # factor on its memory bandwidth
    # CPU time of the engine process for which the GPU waits: per step, and per sequence in it
    engine_step_ns: int = 0
    engine_sequence_ns: int = 0
    engine_spins: bool = False  # busy-waits for the GPU: uses one CPU core all the time
    # CPU time of the API servers: per request, and per event. Only in simulated time: the embedded
    # engine has a real front end, which uses real CPU time.
    front_request_ns: int = 0
    front_event_ns: int = 0
    front_token_ns: int = 0  # per token of an event
    # A request is handled in so many turns of its process, which does other work in between
    front_turns: int = 1
    # Each API server has one tokenizer, a thread of its own: time per request. It takes as many
    # waiting prompts at once as this, and they leave it together.
    front_tokenizer_ns: int = 0
    front_tokenizer_batch: int = 1
    api_server_count: int = 1
    # Fields of Roofline, as measured on a server; empty: those of the model on the GPU
    measured_step: tuple[float, ...] = ()
    prompts_elsewhere: bool = False  # every other prompt is prefilled elsewhere, at no cost
    seed: int = 0

    def __post_init__(self) -> None:
        if self.model not in MODELS or self.gpu not in GPUS:
            raise ConfigError(
                f"the engine's model is {self.model!r} on {self.gpu!r}: expected a model of "
                f"{', '.join(MODELS)} and a GPU of {', '.join(GPUS)}; try llama-3.1-8b on h100."
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"--max-num-batched-tokens is {self.max_num_batched_tokens}: expected at least "
                f"--max-num-seqs ({self.max_num_seqs}), one token for each; try 2048."
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ConfigError(
                f"--max-num-batched-tokens is {self.max_num_batched_tokens} without chunked "
                f"prefill: expected at least --max-model-len ({self.max_model_len}), since a "
                "prompt goes in whole; try the same number for both."
            )
        if not self.blocks:
            fits = [gpu for gpu in GPUS if blocks_that_fit(MODELS[self.model], GPUS[gpu], 1)]
            raise ConfigError(
                f"--shape is {self.model}, whose weights do not fit --gpu {self.gpu}: expected a "
                f"GPU with more memory; try --gpu {fits[0]}."
            )
        if self.blocks * self.block_size < self.max_model_len:
            raise ConfigError(
                f"the KV cache has {self.blocks} blocks of {self.block_size} tokens: expected "
                f"room for one request of --max-model-len ({self.max_model_len}); try "
                f"--max-model-len {max(self.blocks, 0) * self.block_size}."
            )

    @property
    def blocks(self) -> int:
        return self.num_gpu_blocks or blocks_that_fit(
            MODELS[self.model], GPUS[self.gpu], self.block_size
        )
