"""Several replicas behind one URL: their figures are added up, shown one by one, never halved."""

from __future__ import annotations

import contextlib
import socket
import textwrap
import threading
from contextlib import closing
from dataclasses import replace
from math import inf, isnan, nan
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from gateway import Gateway
from little_servers import http, little_server, vllm_like
from report_folder import make
from study_process import check_code, harness, started

from harness.diagnosis.server_window import (
    counter_that_fell,
    load_shares,
    replica_figures,
    skew_sentence,
)
from harness.engine.config import EngineConfig
from harness.engine.process import start_engine
from harness.errors import ServerUnreachable
from harness.metrics.level_figures import Audit, ServerFigures
from harness.metrics.result import Level, Result, read_result
from harness.records import names
from harness.records.folder_reader import from_rows, read_run, to_row
from harness.records.histogram import Histogram
from harness.records.samples import ServerSample
from harness.report.answer import build_answer, replica_sentences
from harness.report.report_data import ReportData
from harness.report.tables import replica_rows
from harness.senders.scraper import Scraper
from harness.server.access import TargetAccess
from harness.server.address import Address, free_port
from harness.server.http_exchange import fetch
from harness.server.max_num_seqs import max_num_seqs
from harness.server.probe import probe
from harness.wire.vllm_metrics import sum_samples

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from little_servers import LittleServer, Reply

A = "http://a:8000"
B = "http://b:8000"
TTFT = Histogram((0.1, inf), (3.0, 5.0), 2.0)
ONE = ServerSample(
    1_000,
    took_ns=100,
    running=3,
    waiting=1,
    kv_usage=0.2,
    kv_usage_fullest=0.3,
    awake=1,
    requests_total=10,
    generation_tokens_total=100,
    api_cpu_s=4.0,
    engine_cpu_s=7.0,
    started_s=50.0,
    ttft_sum_s=2.0,
    ttft_count=5.0,
    finished={"length": 8.0, "stop": 2.0},
    histograms={"ttft": TTFT},
)
TWO = replace(
    ONE,
    at_ns=1_060,
    took_ns=200,
    running=9,
    waiting=nan,
    kv_usage=0.6,
    kv_usage_fullest=0.8,
    awake=0,
    requests_total=30,
    api_cpu_s=2.0,
    started_s=40.0,
    finished={"length": 30.0},
)


def test_a_sum_of_replicas() -> None:
    """Requests and counters add up; shares and one process's CPU are means; unknown stays so."""
    got = sum_samples({A: ONE, B: TWO})
    want = {
        "at_ns": (950 + 1_160) // 2,
        "took_ns": 1_160 - 950,  # from the first byte to the last
        "running": 12,
        "kv_usage": 0.4,
        "kv_usage_fullest": 0.8,
        "awake": 0,
        "requests_total": 40,
        "generation_tokens_total": 200,
        "api_cpu_s": 3.0,
        "engine_cpu_s": 14.0,
        "started_s": 50.0,
        "ttft_count": 10.0,
        "finished": {"length": 38.0, "stop": 2.0},
        "histograms": {"ttft": Histogram(TTFT.bounds, (6.0, 10.0), 4.0)},
    }
    assert {name: getattr(got, name) for name in want} == want
    assert isnan(got.waiting)  # B does not say
    assert list(got.replicas) == [A, B]
    assert sum_samples({A: ONE}) is ONE


def test_lines_of_replicas_come_back() -> None:
    """server.jsonl has the sum, as with one server, and each replica's own numbers in its line."""
    both = sum_samples({A: ONE, B: replace(TWO, waiting=4)})
    (got,), bad = from_rows([to_row(both, {})])
    assert bad == 0
    assert got.running == 12
    assert got.histograms == both.histograms
    assert list(got.replicas) == [A, B]
    first, second = got.replicas.values()
    assert first.running == 3
    assert first.waiting == 1
    assert first.ttft_count == 5.0
    assert second.running == 9
    assert second.waiting == 4
    assert second.ttft_count == 5.0


def figures(*in_flight: float) -> dict[str, ServerFigures]:
    """Replicas with so many requests each."""
    return {f"r{i}": ServerFigures(running_mean=n, waiting_mean=0) for i, n in enumerate(in_flight)}


@pytest.mark.parametrize(
    ("in_flight", "want"),
    [
        ((8, 2), "r0 has 80% of the requests in flight and r1 20%, where each of 2"),
        ((6, 4), ""),
        ((7.5, 2.5), "r0 has 75%"),  # half as much again as its 50%
        ((10, 10, 10, 0), "r0 has 33% of the requests in flight and r3 0%, where each of 4"),
        ((10, 9, 9, 5), ""),
        ((2, 0), ""),  # two requests: chance
        ((0, 0), ""),
        ((nan, 9), ""),  # one does not say
        ((9,), ""),
        ((), ""),
    ],
)
def test_skew_is_named(in_flight: Sequence[float], want: str) -> None:
    """The busiest and the idlest, where there is enough to compare."""
    got = skew_sentence(figures(*in_flight))
    assert want in got
    assert bool(got) == bool(want)


@pytest.mark.parametrize(
    ("client", "server", "want"),
    [
        (2079, 979, ["generated 47% of the tokens"]),  # one of two
        (2079, 1900, []),
        (2079, nan, []),
        (400, 100, []),  # at the ends of a short window
    ],
)
def test_a_replica_whose_metrics_are_not_read(client: int, server: float, want: list[str]) -> None:
    """Half of the tokens came from nowhere: then the figures of the server are not all."""
    audit = Audit(client, server, server / client - 1, ok=True)
    result = Result(levels=(Level(0, 8, audit=audit),))
    got = replica_sentences(ReportData(None, result))  # type: ignore[arg-type]
    for part, line in zip(want, got, strict=True):
        assert part in line


def test_the_figures_of_each() -> None:
    """As those of a single server, over the same window."""
    before = sum_samples({A: ONE, B: TWO})
    later_a = replace(ONE, at_ns=2_000, requests_total=16, running=5)
    later_b = replace(TWO, at_ns=2_000, requests_total=31, waiting=1)
    got = replica_figures([before, sum_samples({A: later_a, B: later_b})])
    assert list(got) == [A, B]
    assert got[A].running_mean == 4
    assert got[A].samples == 2
    assert got[B].running_mean == 9
    assert got[B].samples == 2
    shares = load_shares(got)
    assert shares.keys() == {A, B}
    assert shares[A] == pytest.approx(5 / 15)
    assert shares[B] == pytest.approx(10 / 15)
    assert replica_figures([ONE]) == {}
    assert replica_figures([]) == {}


def test_a_drill_shows_each_replica_while_one_is_down() -> None:
    """The survivor's scrapes are its own: they enter no sum, and come back from lines."""
    alone = []
    for ns in (2_000, 3_000):
        survivor = replace(ONE, at_ns=ns, running=7)
        alone.append(ServerSample(ns, replicas={A: survivor}))
    lines, bad = from_rows([to_row(one, {}) for one in alone])
    got = replica_figures([sum_samples({A: ONE, B: TWO}), *lines])
    assert bad == 0
    assert got[A].samples == 3
    assert got[B].samples == 1
    assert got[A].running_mean == pytest.approx((3 + 7 + 7) / 3)
    run: Any = SimpleNamespace(info={"config": {}}, some=lines)
    both_up = Level(0, 8, settled_ns=0, end_ns=1_500)
    one_down = Level(1, 8, settled_ns=1_500, end_ns=9_000)
    result = Result(command="drill", levels=(both_up, one_down))
    [said] = replica_sentences(ReportData(run, result))
    when = "In 2 scrapes of phase 2 (8 concurrent requests) a replica did not answer"
    assert said == f"{when}: {A} had 7.00 running and 1.00 waiting."


def test_the_restart_of_one_is_noticed() -> None:
    """Also where the sum rises all the same."""
    a = replace(ONE, started_s=nan)
    b = replace(TWO, started_s=nan)
    before = sum_samples({A: a, B: b})
    a = replace(a, requests_total=2, generation_tokens_total=9)
    b = replace(b, requests_total=99, generation_tokens_total=999)
    after = sum_samples({A: a, B: b})
    assert after.requests_total > before.requests_total
    assert counter_that_fell(before, after) == f"generation tokens fell from 100 to 9 ({A})"


def test_slots_of_all() -> None:
    """A flag is of one engine; replicas that do not show their cache count one engine each."""
    server = {"flags": {"max_num_seqs": 8}}
    two = server | {"replicas": ["a", "b"]}
    assert max_num_seqs(server, []).slots == 8
    assert max_num_seqs(two, []).slots == 16
    apart = max_num_seqs({**two, "prefill": ["c", "d", "e"]}, [])
    assert (apart.slots, apart.prefill_engines) == (16, 3)  # those that prefill have others
    assert max_num_seqs(two | {"engines": 4}, []).slots == 32


# The scraper and the probe, on servers that answer as they are told.


def page(running: int, requests: int = 0, started_s: float = 1.5) -> bytes:
    """What /metrics answers."""
    lines = (
        f"vllm:num_requests_running {running}",
        f"vllm:request_success_total {requests}",
        f"process_start_time_seconds {started_s}",
        f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{running + 1}"}} 1\n',
    )
    return http("\n".join(lines).encode(), kind="text/plain")


@contextlib.contextmanager
def servers(*replies: Reply) -> Iterator[list[LittleServer]]:
    """One for each."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(little_server(reply)) for reply in replies]


def urls(found: Sequence[LittleServer]) -> list[str]:
    """Where they listen."""
    return [f"http://127.0.0.1:{one.port}" for one in found]


def access(url: str) -> TargetAccess:
    """With a key."""
    return TargetAccess(Address.parse(url), api_key="a-secret-key")


def test_a_replica_that_fails_is_said_not_left_out() -> None:
    """No sum without it: the samples have a gap, and the reason is counted. Then it is back."""
    fails = http({}, status=503)
    pages = iter([page(5), fails, fails, page(7)])
    samples: list[ServerSample] = []
    some: list[ServerSample] = []
    with servers(lambda *_: page(3), lambda *_: next(pages)) as both:
        where = urls(both)
        replicas = access(where[0]).replicas(where)
        scraper = Scraper(replicas, samples.append, some.append)
        said = []
        for _ in range(4):
            scraper.once()
            said.append(scraper.unread)
        scraper.stop()
    assert [sample.running for sample in samples] == [8, 10]
    assert said == [[], [where[1]], [where[1]], []]
    assert len(some) == 2
    for sample in some:
        running = {name: one.running for name, one in sample.replicas.items()}
        assert running == {where[0]: 3}
    why = f"{where[1]}/metrics answers 503 without a metric of vLLM's"
    assert scraper.figures() == {"scrapes_failed": {why: 2}}


def test_a_gateway_without_metrics_says_nothing_every_second() -> None:
    """It was said before the load; a scrape that was never possible is no failure."""
    with servers(lambda *_: http({}, status=404)) as one:
        scraper = Scraper(access(urls(one)[0]).replicas(()))
        assert scraper.once() is False
        assert scraper.latest() is None
        assert scraper.figures() == {}
        scraper.stop()


def test_the_key_stays_with_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other hosts are asked without it, and without headers of the user."""
    monkeypatch.setenv("KEY", "another-secret")
    mine = replace(access("http://gateway:80"), headers=(("X-Key", "$KEY"),))
    got = mine.replicas(["http://gateway:8001", "http://10.0.0.7:8000"])
    same_host = got["http://gateway:8001"]
    other_host = got["http://10.0.0.7:8000"]
    assert len(got) == 2
    assert same_host.api_key == "a-secret-key"
    assert same_host.headers == mine.headers
    assert other_host.api_key == ""
    assert other_host.headers == ()


def test_each_address_of_a_name_is_asked_by_itself() -> None:
    """At that address, with the name in the Host header."""
    with socket.create_server(("127.0.0.2", 0)) as listener:
        listener.settimeout(20)
        port = listener.getsockname()[1]
        ((name, one),) = access(f"http://replicas.test:{port}").replicas(["127.0.0.2"]).items()
        heads: list[bytes] = []

        def answer() -> None:
            sock, _ = listener.accept()
            with sock:
                heads.append(sock.recv(4096))
                sock.sendall(page(1))

        thread = threading.Thread(target=answer)
        thread.start()
        got = fetch(one, "/metrics")
        thread.join()
    assert got.status == 200
    assert name == f"http://127.0.0.2:{port}"
    assert f"Host: replicas.test:{port}".encode() in heads[0]


def test_what_the_probe_finds() -> None:
    """Every replica that is given, and the KV cache of all."""
    without_metrics = vllm_like(metrics=http({}, 404))
    with servers(without_metrics, lambda *_: page(3), lambda *_: page(4)) as three:
        gateway, *where = urls(three)
        got = probe(access(gateway), "chat", metrics_urls=where)
        alone = probe(access(gateway), "chat")
    assert got.metrics is True
    assert got.replicas == tuple(where)
    assert got.no_metrics == ""
    assert got.cache["engines"] == 2
    assert got.cache["kv_blocks"] == 4 + 5
    assert alone.metrics is False
    assert alone.replicas == ()
    assert alone.cache == {}
    assert alone.no_metrics == f"{gateway}/metrics answers 404 without a metric of vLLM's"


def test_a_replica_without_metrics_is_refused() -> None:
    """Before any load, by its URL: one that is given was meant."""
    with servers(vllm_like(), lambda *_: http({}, 404)) as two:
        gateway, where = urls(two)
        for bad, says in (
            (where, f"{where}/metrics answers 404 without a metric"),
            ("http://127.0.0.1:9", "nothing listens at http://127.0.0.1:9"),
        ):
            with pytest.raises(ServerUnreachable, match="Expected each --metrics-url") as refused:
                probe(access(gateway), "chat", metrics_urls=[gateway, bad])
            assert str(refused.value).startswith(says)


def test_an_address_without_a_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a name: the run goes on without the server's figures, as their sum would be too small."""
    with servers(vllm_like(metrics=page(1))) as one:
        found = ("127.0.0.1", "127.0.0.3")  # nobody listens at the second
        monkeypatch.setattr("harness.server.probe.addresses_of", lambda _: found)
        got = probe(access(f"http://localhost:{one[0].port}"), "chat")
    assert got.metrics is False
    assert got.replicas == found
    assert got.cache == {}
    assert got.no_metrics.startswith(f"http://127.0.0.3:{one[0].port}: nothing listens at ")


@pytest.mark.parametrize(
    ("started_s", "replicas"),
    [((1.5, 2.5), ("127.0.0.1", "127.0.0.2")), ((1.5, 1.5), ("127.0.0.1",))],
    ids=["two servers", "two addresses of one"],
)
def test_addresses_of_one_server_are_not_added_up(
    started_s: tuple[float, float], replicas: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A balancer with two addresses shows one server's page twice."""
    seen = iter(page(1, started_s=one) for one in started_s)
    like = vllm_like()
    connect = socket.create_connection

    def answer(path: str, body: Any) -> Any:
        return next(seen) if path == "/metrics" else like(path, body)

    with servers(answer) as one:
        port = one[0].port

        # The second address is nobody's: what it answers comes from the same listener.
        def connect_here(_: Any, *rest: Any) -> socket.socket:
            return connect(("127.0.0.1", port), *rest)

        addresses = ("127.0.0.1", "127.0.0.2")
        monkeypatch.setattr("harness.server.probe.addresses_of", lambda _: addresses)
        monkeypatch.setattr(socket, "create_connection", connect_here)
        got = probe(access(f"http://replicas.test:{port}"), "chat")
    assert got.replicas == replicas
    assert got.addresses == 2


def test_the_report_has_each_replica(tmp_path: Path) -> None:
    """A row for each at each level; the answer says how uneven they are, and what is missing."""
    make(tmp_path / "run", seconds=2, levels=(8,))
    run = read_run(tmp_path / "run")
    result = read_result(tmp_path / "run")
    assert result is not None
    both = figures(8, 2)
    skew = skew_sentence(both)
    levels = tuple(replace(level, replicas=both, skew=skew) for level in result.levels)
    client = result.client | {"scrapes_failed": {f"{B}/metrics answers 503": 3}}
    facts = ReportData(run, replace(result, levels=levels, client=client))
    first, second = replica_rows(facts)
    assert first["Replica"] == "r0"
    assert first["Load"] == "80.0%"
    assert first["Running"] == "8.00"
    assert second["Replica"] == "r1"
    assert second["Load"] == "20.0%"
    assert second["Running"] == "2.00"
    *_, uneven, gaps = build_answer(facts).sentences
    assert uneven.startswith("At 8 concurrent requests, r0 has 80% of the requests in flight and")
    assert gaps == (
        "The server's metrics were not read 3 times, so its figures have gaps: "
        f"{B}/metrics answers 503."
    )


# Whole runs.


NO_METRICS = {b"GET /metrics": http({}, status=404)}  # none of a gateway's paths


RUN = (
    "--users",
    "10",
    "--duration",
    "6s",
    "--prompt-tokens",
    "16",
    "--output-tokens",
    "60",
    "--workload",
    "fixed",
    "--gpu-metrics",
    "none",
    "--slo",
    "ttft_p50=30s",
    "--quiet",
)


def run(url: str, out: Path, *flags: str) -> tuple[str, Any]:
    """A whole run: what it printed, and its first level."""
    done = harness("run", url, *RUN, *flags, "--out", str(out))
    result = read_result(out)
    assert result is not None, done.stdout + done.stderr
    check_code(done.returncode, done.stdout + done.stderr, 0)
    assert result.exit_code == done.returncode
    return done.stdout, result.levels[0]


def counted(out: Path) -> tuple[int, int, dict[str, int]]:
    """Requests and tokens of the run beyond what the servers count; each server's requests."""
    it = read_run(out)
    first = it.server[0]
    last = it.server[-1]
    requests = {}
    for name, replica in last.replicas.items():
        requests[name] = round(replica.requests_total - first.replicas[name].requests_total)
    tokens = last.generation_tokens_total - first.generation_tokens_total
    counted_requests = sum(requests.values())
    assert last.requests_total - first.requests_total == counted_requests
    missing = len(it.table) - counted_requests
    return missing, int(it.table.tokens.sum() - tokens), requests


@pytest.fixture(scope="module")
def engines() -> Iterator[list[str]]:
    """Two replicas."""
    config = EngineConfig(max_num_seqs=16)
    with start_engine(config) as one, start_engine(config) as two:
        yield [one.url, two.url]


@pytest.mark.long
@pytest.mark.process
def test_two_replicas_behind_a_balancer(engines: list[str], tmp_path: Path) -> None:
    """Every request that was sent is counted by one of them; eight of ten users are on one."""
    out = tmp_path / "run"
    flags = [word for url in engines for word in ("--metrics-url", f"{url}/metrics")]
    four_to_one = [engines[0]] * 4 + [engines[1]]
    with closing(Gateway(four_to_one, in_turn=True, answers=NO_METRICS)) as balancer:
        printed, level = run(balancer.url, out, *flags)
    missing, tokens, requests = counted(out)
    assert missing == 0
    assert tokens == 0
    assert list(requests) == engines
    assert min(requests.values()) > 0
    assert list(level.replicas) == engines
    assert level.audit.ok is True
    per_replica = [one.requests_per_s for one in level.replicas.values()]
    # a busy machine reads one some milliseconds after the other
    assert level.server.requests_per_s == pytest.approx(sum(per_replica), rel=0.01)
    assert level.skew.startswith(f"{engines[0]} has ")
    assert read_run(out).info["server"]["engines"] == 2
    assert f"At 10 concurrent requests, {level.skew}." in printed
    assert f"| {engines[1]} |" in (out / names.REPORT_MD).read_text()
    assert "Replicas by level" in (out / names.REPORT_HTML).read_text()
    head = (out / names.LEVELS_CSV).read_text().partition("\n")[0]
    assert "replicas" not in head
    assert "skew" in head


@pytest.mark.process
def test_a_gateway_without_metrics(engines: list[str], tmp_path: Path) -> None:
    """What is missing and why is said, before the load and in the report; measuring goes on."""
    with closing(Gateway(engines, in_turn=True, answers=NO_METRICS)) as balancer:
        printed, level = run(balancer.url, tmp_path / "run")
    why = f"{balancer.url}/metrics answers 404 without a metric of vLLM's"
    assert f"{why}: without the server's figures (running, waiting, KV cache" in printed
    assert level.server.samples == 0
    assert level.ttft_ms.n > 0
    page = (tmp_path / "run" / names.REPORT_HTML).read_text().replace("&#39;", "'")
    assert f"The server exposed no metrics ({why}), so all server-side figures" in page


RESOLVER = """
    import _socket

    real = _socket.getaddrinfo

    def getaddrinfo(host, port, *rest, **more):
        if host not in ("replicas.test", b"replicas.test"):
            return real(host, port, *rest, **more)
        return [(2, 1, 6, "", (ip, int(port))) for ip in ("127.0.0.1", "127.0.0.2")]

    _socket.getaddrinfo = getaddrinfo
"""


@pytest.mark.long
@pytest.mark.process
def test_a_name_with_two_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are spread over both, and both are read, without an option."""
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(RESOLVER))
    port = free_port()
    out = tmp_path / "run"
    hosts = ("127.0.0.1", "127.0.0.2")
    both = [started("engine", "--host", host, "--port", str(port)) for host in hosts]
    try:
        for one in both:
            assert one.stdout is not None
            assert "listens at" in one.stdout.readline()
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        printed, level = run(f"http://replicas.test:{port}", out)
    finally:
        for one in both:
            one.kill()
            one.communicate()
    assert "replicas.test has 2 addresses; connections are spread over all of them" in printed
    missing, tokens, requests = counted(out)
    assert missing == 0
    assert tokens == 0
    assert set(requests) == {f"http://{host}:{port}" for host in hosts}
    assert min(requests.values()) > 0
    assert level.audit.ok is True
    assert level.skew == ""
    result = read_result(out)
    assert result is not None
    assert result.client["addresses"] == list(hosts)
