"""A stub OpenAI-compatible server in a thread, for the answers that a healthy vLLM never gives.

Left alone it behaves like a small vLLM 0.29.0 without a drafter: two served names (the second a LoRA adapter), a
byte-level tokenizer with a chat template, a prefix cache of 64-token blocks separated by model and ``cache_salt``,
usage with ``prompt_tokens_details``, and counters that move. Attributes change that, also between two requests;
``reply_once`` and ``always`` put a canned reply in place of a path's own.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BLOCK = 64
CHAT, MODELS, METRICS, TOKENIZE, VERSION = "/v1/chat/completions", "/v1/models", "/metrics", "/tokenize", "/version"
DETOKENIZE, COMPLETIONS, MESSAGES = "/detokenize", "/v1/completions", "/v1/messages"
HTML_PAGE = "<!doctype html><html><head><title>Welcome</title></head><body>a web server, not vLLM</body></html>"
BOS, TURN, END = 256, 257, 258


@dataclass(frozen=True)
class Reply:
    """What to send instead.

    ``cut`` announces the whole body and sends only so many bytes of it; ``delay_s`` waits first; ``close`` ends the
    connection without any answer; ``trickle_s`` waits so long before each byte, status line included; ``pace_s`` waits
    before each event of a stream, as an engine's steps do.
    """

    status: int = 200
    body: Any = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None
    delay_s: float = 0.0
    close: bool = False
    trickle_s: float = 0.0
    pace_s: float = 0.0

    @property
    def payload(self) -> bytes:
        return self.body.encode() if isinstance(self.body, str) else json.dumps(self.body).encode()


def error(status: int, message: str, **headers: str) -> Reply:
    """An error as vLLM words it: ``{"error": {"message": …}}``."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, {"error": {"message": message, "type": "Error", "code": status}}, named)


class StubServer:
    """The server; a context manager.

    Attributes
    ----------
    model, lora : served names; ``lora`` None serves no adapter.
    api_key : required as a bearer token where it is set.
    reports_cached : False answers ``prompt_tokens_details: null``.
    honours_salt : False shares one cache among all salts.
    tokenizer : ``bytes``; ``pairs`` counts every byte twice, so half of all lengths can't be made; None has no
        ``/tokenize``.
    has_metrics, engines, prefix_caching : of the ``/metrics`` page.
    hits_skew, others_tokens : added to the hits and queries that ``/metrics`` counts for each request.
    labels, more_metrics : further labels of ``vllm:cache_config_info``; further lines of the page.
    owned_by, headers : of ``/v1/models``; of every answer.
    block : tokens of one block; sends : how often a prefix must have been sent before it hits (2: the third send does).
    ranks : caches that requests take turns on, each a server of its own to ``/metrics`` where ``balanced``, and an
        engine of its own where ``engines`` are as many; ``X-data-parallel-rank`` picks one where ``pins``.
    route : number of the request → the rank that answers it; in turns by default.
    page_of : the rank whose counters alone ``/metrics`` shows; None shows all.
    apis : the paths at which it completes prompts.
    refuses : fields that get a 400.
    head : what the chat template writes before the first message.
    draft : how many tokens a drafter guesses per step; None has no drafter.
    accepts : number of the step → how many of them are right.
    reports_drafting : a drafter's score stands in each answer too.
    others : tokens that other traffic generates during each answer.
    pace_s : before each event of a stream: one step of the engine; 0 sends all of them at once, as a proxy may.
    chunked : a stream comes in the chunks of HTTP/1.1; False announces its length, as some gateways do.
    max_model_len : longer prompts are a 400.
    answer : prompt token ids, salt and number of the request → the answer's token ids (bytes).
    edit : changes a chat answer before it is sent; gets the answer and the request's body. It may give a Reply.
    requests : (path, body, headers) of everything that came in.
    """

    def __init__(self) -> None:
        self.model = "tiny"
        self.lora: str | None = "tiny-lora"
        self.version: str | None = "0.29.0"
        self.api_key = ""
        self.reports_cached = True
        self.honours_salt = True
        self.tokenizer: str | None = "bytes"
        self.has_metrics = True
        self.engines = 1
        self.prefix_caching = True
        self.hits_skew = self.others_tokens = 0
        self.labels: dict[str, str] = {}
        self.more_metrics: list[str] = []
        self.owned_by: str | None = "vllm"
        self.headers: dict[str, str] = {}
        self.block, self.sends = BLOCK, 1
        self.ranks, self.balanced, self.pins = 1, False, True
        self.route: Callable[[int], int] = lambda number: number % self.ranks
        self.page_of: int | None = None
        self.apis = (CHAT, COMPLETIONS, MESSAGES)
        self.refuses: tuple[str, ...] = ()
        self.head: Callable[[], str] = lambda: ""
        self.draft: int | None = None
        self.accepts: Callable[[int], int] = lambda step: 0
        self.reports_drafting = True
        self.others = 0
        self.pace_s, self.chunked = 0.003, True
        self.max_model_len = 16_384
        self.answer: Callable[[Sequence[int], str, int], list[int]] = default_answer
        self.edit: Callable[[dict[str, Any], dict[str, Any]], Any] = lambda answer, request: answer
        self.requests: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self._once: dict[str, deque[Reply]] = {}
        self._always: dict[str, Reply] = {}
        self._cache: Counter[int] = Counter()
        self._turn = self._pages = 0
        self._queries = self._hits = 0
        self._by_rank: Counter[int] = Counter()
        self._generated = self._drafts = 0
        self._accepted: list[int] = []
        self._lock = threading.Lock()
        self.closing = threading.Event()
        self._http = _Server(("127.0.0.1", 0), _handler(self))
        self.port = self._http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> StubServer:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def reply_once(self, path: str, *replies: Reply) -> None:
        """Canned replies to the next requests of a path, one each."""
        self._once.setdefault(path, deque()).extend(replies)

    def always(self, path: str, reply: Reply | None) -> None:
        """A canned reply to every request of a path; None takes it back."""
        if reply is None:
            self._always.pop(path, None)
        else:
            self._always[path] = reply

    def sent(self, path: str = CHAT) -> list[dict[str, Any]]:
        """The bodies that a path received."""
        return [body for at, body, _ in self.requests if at == path]

    def tokens(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """A chat prompt's token ids: turn mark, the role's first byte, the bytes, end mark; then the answer's mark."""
        copies = 2 if self.tokenizer == "pairs" else 1
        ids = [BOS, *self.head().encode()]
        for message in messages:
            content = [byte for byte in message["content"].encode() for _ in range(copies)]
            ids += [TURN, ord(message["role"][0]), *content, END]
        return [*ids, TURN, ord("a")]

    # --- what the handler asks ---------------------------------------------------------------------------------

    def respond(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        with self._lock:
            self.requests.append((path, body, headers))
            if self._once.get(path):
                return self._once[path].popleft()
            if path in self._always:
                return self._always[path]
            if path == "/health":
                return Reply()
            if self.api_key and headers.get("authorization") != f"Bearer {self.api_key}" and path.startswith("/v1"):
                return error(401, "Unauthorized")
            routes = {
                MODELS: self._models,
                METRICS: self._metrics,
                TOKENIZE: self._tokenize,
                VERSION: self._version,
                DETOKENIZE: self._detokenize,
                CHAT: self._chat,
                COMPLETIONS: self._complete,
                MESSAGES: self._message,
            }
            if path in (CHAT, COMPLETIONS, MESSAGES) and path not in self.apis:
                return error(404, "Not Found")
            return routes[path](body, headers) if path in routes else error(404, "Not Found")

    def _models(self, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        entries: list[dict[str, Any]] = [{"id": self.model, "parent": None, "max_model_len": self.max_model_len}]
        if self.lora:
            entries.append({"id": self.lora, "parent": self.model, "max_model_len": None})
        entries = [{**entry, "owned_by": self.owned_by} for entry in entries]
        return Reply(body={"object": "list", "data": [{"object": "model", **entry} for entry in entries]})

    def _version(self, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        return Reply(body={"version": self.version}) if self.version else error(404, "Not Found")

    def _tokenize(self, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        if self.tokenizer is None:
            return error(404, "Not Found")
        ids = [*body["prompt"].encode()] if "prompt" in body else self.tokens(body["messages"])
        return Reply(body={"count": len(ids), "max_model_len": self.max_model_len, "tokens": ids})

    def _detokenize(self, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        if self.tokenizer is None:
            return error(404, "Not Found")
        return Reply(
            body={"prompt": bytes(token for token in body["tokens"] if token < 256).decode("utf-8", "replace")}
        )

    def _metrics(self, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        if not self.has_metrics:
            return error(404, "Not Found")
        lines = []
        for name, value in (("queries", self._queries), ("hits", self._hits)):
            lines += [
                f"# HELP vllm:prefix_cache_{name}_total of tokens",
                f"# TYPE vllm:prefix_cache_{name}_total counter",
            ]
            for engine in range(self.engines):
                share = value if engine == 0 else 0
                if name == "queries" and self.engines == self.ranks > 1:
                    share = self._by_rank[engine]
                if name == "queries" and self.page_of is not None:
                    share = self._by_rank[self.page_of]
                lines.append(
                    f'vllm:prefix_cache_{name}_total{{engine="{engine}",model_name="{self.model}"}} {float(share)}'
                )
        totals = {"generation_tokens": self._generated, "prompt_tokens": self._queries}
        if self.draft is not None:
            totals |= {
                "spec_decode_num_drafts": self._drafts,
                "spec_decode_num_draft_tokens": self._drafts * self.draft,
            }
            totals |= {"spec_decode_num_accepted_tokens": sum(self._accepted)}
            lines += [
                f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}} '
                f"{sum(1 for accepted in self._accepted if accepted > place)}.0"
                for place in range(self.draft)
            ]
        lines += [f'vllm:{name}_total{{engine="0"}} {value}.0' for name, value in totals.items()]
        for engine in range(self.engines):
            labels = (
                f'block_size="32",enable_prefix_caching="{self.prefix_caching}",engine="{engine}",num_gpu_blocks="4096"'
            )
            labels += "".join(f',{name}="{value}"' for name, value in self.labels.items())
            lines.append(f"vllm:cache_config_info{{{labels}}} 1.0")
        if self.balanced:
            self._pages += 1
            lines.append(f"process_start_time_seconds 1.7e+09{self._pages % self.ranks}")
        lines += self.more_metrics
        return Reply(body="\n".join([*lines, ""]), headers={"Content-Type": "text/plain; version=0.0.4"})

    def _chat(self, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        if body["model"] not in (self.model, self.lora):
            return error(404, f"The model `{body['model']}` does not exist.")
        ids = self.tokens(body["messages"])
        if len(ids) > self.max_model_len:
            return error(
                400, f"This model's maximum context length is {self.max_model_len} tokens. Your request has {len(ids)}."
            )
        for name in self.refuses:
            if name in body:
                return error(400, f"Unsupported parameter: '{name}'")
        salt = body.get("cache_salt") or ""
        rank = self.route(self._turn)
        self._turn += 1
        if self.pins and "x-data-parallel-rank" in headers:
            rank = int(headers["x-data-parallel-rank"])
        cached = self._look_up_and_store(ids, (body["model"], salt if self.honours_salt else "", str(rank)))
        budget = body.get("max_tokens") or body.get("max_completion_tokens") or 1
        answered = self.answer(ids, salt, len(self.sent()))[:budget]
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": bytes(answered).decode("utf-8", "replace")},
            "finish_reason": "length",
            "logprobs": None,
        }
        if body.get("return_token_ids"):
            choice["token_ids"] = answered
        if body.get("logprobs"):
            top = [{"token": "a", "logprob": -0.25}, {"token": "b", "logprob": -1.75}]
            choice["logprobs"] = {"content": [{"token": "a", "logprob": -0.25, "top_logprobs": top} for _ in answered]}
        answer = {
            "id": f"chatcmpl-{headers.get('x-request-id', 'none')}",
            "object": "chat.completion",
            "model": body["model"],
            "choices": [choice],
            "usage": {
                "prompt_tokens": len(ids),
                "completion_tokens": len(answered),
                "total_tokens": len(ids) + len(answered),
                "prompt_tokens_details": {"cached_tokens": cached} if self.reports_cached else None,
            },
        }
        steps = self._decode(len(answered))
        if body.get("stream"):
            return Reply(
                body=self._streamed(answer, answered, steps, body),
                headers={"Content-Type": "text/event-stream"},
                pace_s=self.pace_s,
            )
        edited = self.edit(answer, body)
        return (
            edited
            if isinstance(edited, Reply)
            else Reply(body=edited, headers={"X-Request-Id": headers.get("x-request-id", "")})
        )

    def _complete(self, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        """A text goes on without any template: here as one user's message all the same."""
        reply = self._chat({**body, "messages": [{"role": "user", "content": body["prompt"]}]}, headers)
        if reply.status == 200:
            choice = reply.body["choices"][0]
            choice["text"] = choice.pop("message")["content"]
        return reply

    def _message(self, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        """The same answer in Anthropic's shape: the cached part stands beside the input, not in it."""
        reply = self._chat(body, headers)
        if reply.status != 200:
            return Reply(reply.status, {"type": "error", **reply.body}, reply.headers)
        usage, choice = reply.body["usage"], reply.body["choices"][0]
        details = usage["prompt_tokens_details"]
        cached = details["cached_tokens"] if details else 0
        told = {"input_tokens": usage["prompt_tokens"] - cached, "output_tokens": usage["completion_tokens"]}
        if details:
            told["cache_read_input_tokens"] = cached
        content = [{"type": "text", "text": choice["message"]["content"]}]
        return Reply(body={"type": "message", "content": content, "stop_reason": "max_tokens", "usage": told})

    def _decode(self, tokens: int) -> list[int]:
        """How many of the drafted tokens each step after the first token accepted; the counters move."""
        self._generated += tokens + self.others
        steps: list[int] = []
        while self.draft is not None and 1 + sum(steps) + len(steps) < tokens:
            left = tokens - 2 - sum(steps) - len(steps)
            steps.append(min(self.accepts(len(steps)), self.draft, left))
        self._drafts += len(steps)
        self._accepted += steps
        return steps

    def _streamed(self, answer: dict[str, Any], ids: list[int], steps: list[int], body: dict[str, Any]) -> str:
        """The answer as server-sent events: the role alone, a chunk for each step, usage, the end."""
        sizes = [1, *(1 + accepted for accepted in steps)] if self.draft is not None else [1] * len(ids)
        deltas: list[tuple[dict[str, Any], list[int]]] = [({"role": "assistant", "content": ""}, [])]
        for size in sizes:
            done = sum(len(chunk) for _, chunk in deltas)
            chunk = ids[done : done + size]
            deltas.append(({"content": bytes(chunk).decode("utf-8", "replace")}, chunk))
        events: list[dict[str, Any]] = []
        for place, (delta, chunk) in enumerate(deltas):
            choice = {"index": 0, "delta": delta, "finish_reason": "length" if place + 1 == len(deltas) else None}
            if body.get("return_token_ids") and chunk:
                choice["token_ids"] = chunk
            events.append({"id": answer["id"], "choices": [choice]})
        score = {
            "num_spec_steps": len(steps),
            "num_accepted_draft_tokens": sum(steps),
            "num_draft_tokens": len(steps) * (self.draft or 0),
            "acceptance_histogram": [steps.count(n) for n in range((self.draft or 0) + 1)],
        }
        last = {"id": answer["id"], "choices": [], "usage": answer["usage"]}
        if self.draft is not None and self.reports_drafting:
            last["metrics"] = {"speculative_decoding": score}
        events.append(last)
        return "".join(f"data: {json.dumps(self.edit(event, body))}\n\n" for event in events) + "data: [DONE]\n\n"

    def _look_up_and_store(self, ids: Sequence[int], space: tuple[str, ...]) -> int:
        """The hit length of a prompt, which is then in the cache. At least one token is always computed."""
        hit, key, whole = 0, hash(space), True
        for stop in range(self.block, len(ids) + 1, self.block):
            key = hash((key, tuple(ids[stop - self.block : stop])))
            whole = whole and self._cache[key] >= self.sends and stop < len(ids)
            hit = stop if whole else hit
            self._cache[key] += 1
        hit = hit if self.prefix_caching else 0
        self._queries += len(ids) + self.others_tokens
        self._by_rank[int(space[-1])] += len(ids) + self.others_tokens
        self._hits += hit + self.hits_skew
        return hit


def default_answer(ids: Sequence[int], salt: str, number: int) -> list[int]:
    """Readable bytes that follow from the prompt alone: greedy decoding of a deterministic model."""
    seed = sum(ids) % 251
    return [97 + (seed * 7 + step * step * 3 + step) % 26 for step in range(64)]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up is part of the tests, not a traceback on the terminal."""


def _handler(stub: StubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, body: dict[str, Any]) -> None:
            reply = stub.respond(self.path, body, {name.lower(): value for name, value in self.headers.items()})
            if reply.delay_s:
                time.sleep(reply.delay_s)
            if reply.close:
                self.close_connection = True
                return
            payload = reply.payload
            chunked = bool(reply.pace_s) and stub.chunked
            self.send_response_only(reply.status)
            named = {
                "Date": self.date_time_string(),
                "Content-Type": "application/json",
                **stub.headers,
                **reply.headers,
                **({"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(len(payload))}),
            }
            for name, value in named.items():
                self.send_header(name, value)
            if reply.trickle_s:
                head = b"".join(self._headers_buffer) + b"\r\n"
                self._headers_buffer.clear()
                for byte in head + payload:
                    if stub.closing.wait(reply.trickle_s):
                        return
                    self.wfile.write(bytes([byte]))
                return
            if reply.pace_s:
                self.end_headers()
                for event in payload.split(b"\n\n")[:-1]:
                    if stub.closing.wait(reply.pace_s):
                        return
                    piece = event + b"\n\n"
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                self.wfile.write(b"0\r\n\r\n" if chunked else b"")
                return
            # One write for head and body: two would wait for each other's acknowledgement, 40 ms a request.
            self._headers_buffer.append(b"\r\n")
            self._headers_buffer.append(payload if reply.cut is None else payload[: reply.cut])
            self.flush_headers()
            self.close_connection = reply.cut is not None

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
