"""What a server's /metrics, its host and its GPU would say in simulated time, and no more."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING

from harness.engine.figures import Figures
from harness.engine.player import counted
from harness.measure.samples import GpuSample, ServerSample, sums
from harness.units import SECOND

if TYPE_CHECKING:
    from harness.engine.config import EngineConfig
    from harness.engine.frontend import Batch, FrontEnd
    from harness.engine.scheduler import Scheduler, StepPlan

CLOCK_MHZ = 1980.0  # nothing holds it down here


class Observed:
    """Fed with every step; `sample` and `gpu` are readings of the moment."""

    def __init__(self, config: EngineConfig, engine: Scheduler, front: FrontEnd) -> None:
        """Nothing seen yet."""
        self.engine = engine
        self.front = front
        self.figures = Figures(config, "m")
        self._front_ns = config.front_end_ns
        self._previous_ns = 0
        self._gpu = (0, 0, 0)  # at_ns, gpu_ns, memory_ns of the reading before

    def step(self, plan: StepPlan, end_ns: int) -> None:
        """A step ended: gaps by the engine's clock, as vLLM takes them, and what ended."""
        figures = self.figures
        if plan.decoded and self._previous_ns:
            figures.gap.observe_ns(end_ns - self._previous_ns, plan.decoded)
        self._previous_ns = end_ns
        if tokens := counted(plan):
            figures.step_tokens.observe(tokens)
        for sequence in plan.finished:
            figures.finish(sequence, sequence.arrived_ns - self._front_ns)
        if not self.front.costs:
            for sequence in plan.first:
                if len(sequence.spans) == 1:
                    figures.ttft.observe_ns(end_ns - sequence.arrived_ns + self._front_ns)

    def sent(self, batch: Batch, at_ns: int) -> None:
        """Events went out; a first token counts from when its API server took the request up."""
        for sequence in batch.first:
            taken = self.front.taken.pop(sequence.request_id, None)
            if taken is not None:
                self.figures.ttft.observe_ns(at_ns - taken)

    def sample(self, at_ns: int, finished: int) -> ServerSample:
        """What /metrics shows now, and the process table of its host."""
        engine, figures = self.engine, self.figures
        one = len(self.front.processes) == 1  # several do not add up in vLLM's own metrics
        histograms = {
            "ttft": figures.ttft.observed(),
            "itl": figures.gap.observed(),
            "e2e": figures.e2e.observed(),
            "queue": figures.queue.observed(),
            "prefill": figures.prefill.observed(),
            "decode": figures.decode.observed(),
            "inference": figures.inference.observed(),
            "step_tokens": figures.step_tokens.observed(),
        }
        return ServerSample(
            at_ns=at_ns,
            running=len(engine.running),
            waiting=len(engine.waiting),
            waiting_capacity=len(engine.waiting),
            waiting_deferred=0,
            kv_usage=engine.kv_usage,
            kv_usage_fullest=engine.kv_usage,
            awake=1,
            preemptions_total=engine.preemptions_total,
            prompt_tokens_total=engine.prompt_tokens_total,
            generation_tokens_total=engine.generation_tokens_total,
            requests_total=finished,
            prefix_queries_total=engine.prefix_queries_total,
            prefix_hits_total=engine.prefix_hits_total,
            api_cpu_s=self.front.cpu_ns / SECOND if one else nan,
            engine_cpu_s=engine.cpu_ns / SECOND,
            finished={"length": finished},
            took_ns=0,
            histograms=histograms,
            **sums(histograms),
        )

    def gpu(self, at_ns: int) -> GpuSample:
        """What NVML says: shares of the time since the reading before."""
        now = (at_ns, self.engine.gpu_ns, self.engine.memory_ns)
        span, busy, memory = (b - a for a, b in zip(self._gpu, now, strict=True))
        self._gpu = now
        return GpuSample(
            at_ns=at_ns,
            gpu=0,
            util_pct=min(100.0 * busy / span, 100.0) if span > 0 else nan,
            memory_util_pct=min(100.0 * memory / span, 100.0) if span > 0 else nan,
            sm_clock_mhz=CLOCK_MHZ,
            throttled=(),
        )
