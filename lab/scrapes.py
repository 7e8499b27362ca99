"""Scrapes and GPU readings in simulated time, with what a real server and GPU would report."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING

from harness.engine.engine_metrics import EngineMetrics
from harness.engine.player import step_token_count
from harness.records.samples import GpuSample, ServerSample, summed_fields
from harness.units import SECOND

if TYPE_CHECKING:
    from harness.engine.config import EngineConfig
    from harness.engine.scheduler import Scheduler, StepPlan
    from lab.api_servers import EventBatch, FrontEnd

CLOCK_MHZ = 1980.0  # never throttled


class SimulatedObserver:
    """Observes every step; `sample` and `gpu` return current readings."""

    def __init__(self, config: EngineConfig, engine: Scheduler, front: FrontEnd) -> None:
        self.engine = engine
        self.front = front
        self.figures = EngineMetrics(config, "m")
        self._front_ns = config.front_end_ns
        self._previous_ns = 0
        self._gpu = (0, 0, 0)  # at_ns, gpu_ns, memory_ns of the reading before

    def step(self, plan: StepPlan, end_ns: int) -> None:
        """Observe the end of a step: gaps on the engine's clock, as in vLLM, and ended requests."""
        figures = self.figures
        if plan.decoded and self._previous_ns:
            figures.gap.observe_ns(end_ns - self._previous_ns, plan.decoded)
        self._previous_ns = end_ns
        if tokens := step_token_count(plan):
            figures.step_tokens.observe(tokens)
        for sequence in plan.finished:
            figures.finish(sequence, sequence.arrived_ns - self._front_ns)
        if not self.front.costs:
            for sequence in plan.first:
                if len(sequence.spans) == 1:
                    figures.ttft.observe_ns(end_ns - sequence.arrived_ns + self._front_ns)

    def sent(self, batch: EventBatch, at_ns: int) -> None:
        """Observe sent events; TTFT counts from when the API server began with the request."""
        for sequence in batch.first:
            taken = self.front.taken.pop(sequence.request_id, None)
            if taken is not None:
                self.figures.ttft.observe_ns(at_ns - taken)

    def sample(self, at_ns: int, finished: int) -> ServerSample:
        """Return what /metrics and the host's process table would show now."""
        engine, figures = self.engine, self.figures
        one = len(self.front.processes) == 1  # vLLM does not sum up several in its metrics
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
            **summed_fields(histograms),
        )

    def gpu(self, at_ns: int) -> GpuSample:
        """Return an NVML reading: shares of the time since the previous one."""
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
