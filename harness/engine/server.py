"""The embedded engine's HTTP server: one process, one thread, one epoll."""

# It waits with `select` on the descriptor of the epoll itself: `select` takes microseconds, while
# `epoll_wait` rounds up to whole milliseconds, a tenth of an engine step.

from __future__ import annotations

import gc
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from harness import __version__
from harness.engine.client_socket import Client, Request, listen
from harness.engine.completion import (
    KEPT,
    BadRequest,
    SendLog,
    TokenSender,
    parse_completion,
    parse_json,
    prompt_tokens_of,
)
from harness.engine.engine_metrics import EngineMetrics
from harness.engine.player import PacedPlayer, Player
from harness.engine.responses import StreamRenderer, answer, error, refusal

if TYPE_CHECKING:
    from harness.engine.config import EngineConfig

LONGEST_WAIT_S: Final = 0.5
CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
METHODS: Final = dict.fromkeys(  # all other paths allow GET and HEAD only
    (CHAT, COMPLETIONS, "/tokenize", "/reset_prefix_cache", "/oracle/reset"), ("POST",)
)


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """Options of the server. The last one injects faults, for tests of clients."""

    served_name: str = ""  # default: the shape's name
    api_key: str = ""
    first_ns: int = 0  # with pace_ns: tokens by the clock, no engine
    pace_ns: int = 0
    fail_after: int = -1  # requests after which every one gets a 500


class Server:
    """Accepts, parses, plays, sends."""

    def __init__(self, config: EngineConfig, serving: ServingOptions) -> None:
        self.config = config
        self.serving = serving
        self.model = serving.served_name or config.model
        self.figures = EngineMetrics(config, self.model)
        self.player: Player
        if serving.pace_ns:
            self.player = PacedPlayer(config, self.figures, serving.first_ns, serving.pace_ns)
        else:
            self.player = Player(config, self.figures)
        self.oracle: deque[SendLog] = deque(maxlen=KEPT)  # the most recent requests
        self.stopping = False
        self._served = 0
        self._clients: dict[int, Client] = {}
        self._queue: dict[TokenSender, None] = {}
        self._poll = select.epoll()
        self._routes: dict[str, Callable[[Request], bytes]] = {
            "/health": self._health,
            "/version": self._version,
            "/v1/models": self._models,
            "/server_info": self._server_info,
            "/metrics": self._metrics,
            "/tokenize": self._tokenize,
            "/reset_prefix_cache": self._reset_prefix_cache,
            "/oracle": self._oracle,
            "/oracle/reset": self._reset_oracle,
        }

    def run(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        door = listener.fileno()
        self._poll.register(door, select.EPOLLIN)
        while not self.stopping:
            select.select([self._poll.fileno()], [], [], self._wait_s())
            for fd, events in self._poll.poll(0):
                if fd == door:
                    self._accept(listener)
                elif (client := self._clients.get(fd)) is not None:
                    self._serve(client, events)
            self.player.play(time.monotonic_ns())
            self._send()
        for client in list(self._clients.values()):
            self._drop(client)

    def _wait_s(self) -> float:
        due = self.player.due_ns()
        if due < 0:
            return LONGEST_WAIT_S
        wait_s = (due - time.monotonic_ns()) / 1e9
        return min(max(wait_s, 0.0), LONGEST_WAIT_S)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._clients[sock.fileno()] = Client(sock, self._request)
            self._poll.register(sock.fileno(), select.EPOLLIN)

    def _serve(self, client: Client, events: int) -> None:
        alive = True
        if events & select.EPOLLOUT:
            alive = client.flush()
        if alive and events & ~select.EPOLLOUT:
            alive = client.read()
        if alive:
            self._settle(client)
        else:
            self._drop(client)

    def _settle(self, client: Client) -> None:
        """Watch for room to write while data waits; close if requested once all is sent."""
        fd = client.sock.fileno()
        if fd < 0:
            return
        wanted = bool(client.backlog)
        if wanted != client.wanted:
            client.wanted = wanted
            events = select.EPOLLIN | select.EPOLLOUT if wanted else select.EPOLLIN
            self._poll.modify(fd, events)
        if client.closing and not wanted and not client.busy:
            self._drop(client)

    def _drop(self, client: Client) -> None:
        fd = client.sock.fileno()
        if fd < 0:
            return
        if client.number >= 0:
            self.player.abort(client.number)
        del self._clients[fd]
        self._poll.unregister(fd)
        client.sock.close()

    def _send(self) -> None:
        for answering in self._queue:
            client = answering.client
            if client.sock.fileno() < 0:
                continue
            if not answering.send():
                self._drop(client)
            elif answering.finished:
                client.number = -1
                client.next()
                self._settle(client)
            elif client.backlog and not client.wanted:
                self._settle(client)
        self._queue.clear()

    # requests

    def _request(self, client: Client, request: Request) -> None:
        try:
            response = self._respond(client, request)
        except BadRequest as problem:
            response = error(problem.status, str(problem))
        if response is not None:
            client.send(response)
            client.next()

    def _respond(self, client: Client, request: Request) -> bytes | None:
        """Return the whole response; None if tokens follow. Raises BadRequest."""
        if not self._is_authorized(request):
            return refusal(401)
        route = self._routes.get(request.path)
        if route is None and request.path not in (CHAT, COMPLETIONS):
            return refusal(404)
        if request.method not in METHODS.get(request.path, ("GET", "HEAD")):
            return refusal(405)
        if route is not None:
            return route(request)
        self._complete(client, request)
        return None

    def _is_authorized(self, request: Request) -> bool:
        key = self.serving.api_key
        guarded = bool(key) and request.path.startswith("/v1")
        return not guarded or request.headers.get("authorization") == f"Bearer {key}"

    def _complete(self, client: Client, request: Request) -> None:
        received_ns = time.monotonic_ns()
        chat = request.path == CHAT
        wish = parse_completion(
            parse_json(request.body), chat=chat, model=self.model, config=self.config
        )
        self._served += 1
        if 0 <= self.serving.fail_after < self._served:
            raise BadRequest(500, "EngineCore encountered an issue.")
        request_id = f"{'chatcmpl' if chat else 'cmpl'}-{self._served}"
        frames = StreamRenderer(
            chat=chat,
            request_id=request_id,
            model=self.model,
            created=int(time.time()),
            prompt_tokens=wish.prompt_tokens,
            include_usage=wish.include_usage,
            continuous=wish.continuous,
            keeps_kv=wish.keeps_kv,
        )
        sends = SendLog(request_id, request.headers.get("x-request-id", ""), request.arrived_ns)
        self.oracle.append(sends)
        answering = TokenSender(
            client,
            frames,
            sends,
            self._queue,
            received_ns,
            stream=wish.stream,
            interval=self.config.stream_interval,
        )
        client.number = self.player.submit(
            answering,
            wish.prompt_tokens,
            wish.output_tokens,
            wish.hashes,
            fetches_kv=wish.fetches_kv,
        )

    def _health(self, _: Request) -> bytes:
        return answer(200, b"")

    def _version(self, _: Request) -> bytes:
        return answer(200, orjson.dumps({"version": f"harness-{__version__}"}))

    def _models(self, _: Request) -> bytes:
        entry = {
            "id": self.model,
            "object": "model",
            "created": 0,
            "owned_by": "vllm",
            "root": self.model,
            "parent": None,
            "max_model_len": self.config.max_model_len,
        }
        return answer(200, orjson.dumps({"object": "list", "data": [entry]}))

    def _server_info(self, _: Request) -> bytes:
        """Return what vLLM shows in its development mode, as far as it exists here."""
        config = self.config
        scheduler = {
            "max_num_seqs": config.max_num_seqs,
            "max_num_batched_tokens": config.max_num_batched_tokens,
            "enable_chunked_prefill": config.enable_chunked_prefill,
            "stream_interval": config.stream_interval,
        }
        cache = {
            "block_size": config.block_size,
            "enable_prefix_caching": config.enable_prefix_caching,
        }
        vllm_config = {"scheduler_config": scheduler, "cache_config": cache}
        return answer(200, orjson.dumps({"vllm_config": vllm_config}))

    def _metrics(self, _: Request) -> bytes:
        text = self.figures.text(self.player.engine)
        return answer(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")

    def _tokenize(self, request: Request) -> bytes:
        tokens = prompt_tokens_of(parse_json(request.body), chat=False)
        token_ids = [hash(token) & 0xFFFF for token in tokens]
        body: dict[str, Any] = {
            "count": len(tokens),
            "max_model_len": self.config.max_model_len,
            "tokens": token_ids,
            "token_strs": None,
        }
        return answer(200, orjson.dumps(body))

    def _reset_prefix_cache(self, _: Request) -> bytes:
        self.player.engine.kv.reset()
        return answer(200, b"")

    def _oracle(self, _: Request) -> bytes:
        body = {
            "kept": KEPT,
            "requests": [sends.to_json() for sends in self.oracle],
            "late_max_ns": self.figures.late_max_ns,
            "lost_ns": self.figures.lost_ns,
        }
        return answer(200, orjson.dumps(body))

    def _reset_oracle(self, _: Request) -> bytes:
        self.oracle.clear()
        self.figures.late_max_ns = 0
        self.figures.lost_ns = 0
        return answer(200, b"")


def serve(
    config: EngineConfig,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    serving: ServingOptions | None = None,
    ready: Callable[[int], None] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is called with the port. Raises ConfigError."""
    server = Server(config, serving or ServingOptions())
    with listen(host, port) as listener:

        def stop(*_: object) -> None:
            server.stopping = True

        for kind in (signal.SIGINT, signal.SIGTERM):
            signal.signal(kind, stop)
        gc.collect()
        gc.freeze()
        gc.disable()  # streams create no cycles, and a collection would delay every token
        if ready is not None:
            ready(listener.getsockname()[1])
        server.run(listener)
