"""Servers that are started, shared and ended: with small programs in the place of a real engine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prefixscope import server as server_module
from prefixscope.command import ServerCommand
from prefixscope.errors import Exited, ServerError, StartTimeout
from prefixscope.pool import Pool
from prefixscope.processes import free_port, healthy, is_alive, listeners, members, port_taken, start_time
from prefixscope.server import Server, launch
from prefixscope.server_log import explain, latest_step, legal_neighbours, tail
from prefixscope.setting import Setting

STUB = """
import os, signal, socket, subprocess, sys, time
mode, port, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
def note(name, text=""):
    with open(os.path.join(folder, name), "a") as file:
        file.write(text + "\\n")
def serve(status_of=lambda path: 200):
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen(16)
    while True:
        connection, _ = listening.accept()
        path = connection.recv(4096).split()[1].decode()
        connection.sendall(f"HTTP/1.1 {status_of(path)} x\\r\\nContent-Length: 0\\r\\n\\r\\n".encode())
        connection.close()
note("pids", str(os.getpid()))
if mode == "slow":  # ready after a moment, with a child in a session of its own that outlives its parent
    code = "import os,time; os.fork() and os._exit(0); os.setsid(); time.sleep(600)"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], env={})
    print("INFO 01-02 03:04:05 [model.py:7] Loading weights from a stub", flush=True)
    time.sleep(0.3)
elif mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
elif mode == "never":
    print("(EngineCore pid=7) INFO 01-02 03:04:05 [core.py:1] Waiting for the weather", flush=True)
    time.sleep(600)
elif mode == "models":
    serve(lambda path: 200 if path == "/v1/models" else 404)
elif mode == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
elif mode.startswith("dies:"):
    print(open(os.path.join(folder, mode[5:])).read(), file=sys.stderr, flush=True)
    sys.exit(1)
serve()
"""

OWNER = """
import signal, sys, time
from pathlib import Path
from prefixscope.command import ServerCommand
from prefixscope.pool import Pool
from prefixscope.setting import Setting
# A shell that starts tests in the background has Ctrl-C ignored, and that is inherited.
signal.signal(signal.SIGINT, signal.default_int_handler)
run, port, *argv = sys.argv[1:]
with Pool(Path(run)) as pool:
    command = ServerCommand(argv=tuple(argv), url=f"http://127.0.0.1:{port}", port=int(port), alone=False)
    server = pool.acquire(Setting(), lambda: command)
    print(server.token, flush=True)
    time.sleep(600)
"""

Factory = Callable[..., Callable[[], ServerCommand]]


@pytest.fixture
def stub(tmp_path: Path) -> Factory:
    """``stub("slow")`` makes a command factory of a stub server in that mode, at a free port each time."""
    script = tmp_path / "stub.py"
    script.write_text(STUB)

    def factory(mode: str, port: int | None = None, **more: object) -> Callable[[], ServerCommand]:
        def make() -> ServerCommand:
            number = port or free_port()
            argv = (sys.executable, "-I", "-S", str(script), mode, str(number), str(tmp_path))
            options: dict[str, object] = {"alone": False, "start_timeout_s": 30.0, **more}
            return ServerCommand(argv=argv, url=f"http://127.0.0.1:{number}", port=number, **options)  # type: ignore[arg-type]

        return make

    return factory


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "run"
    folder.mkdir()
    yield folder
    Pool(folder).stop_all()


def start(run_dir: Path, command: ServerCommand, server_id: str = "s01") -> Server:
    return launch(command, Setting(), server_id=server_id, folder=run_dir, owner_pid=os.getpid())


def eventually(condition: Callable[[], object], within_s: float = 15.0) -> bool:
    """Whether it becomes true in time; the time is generous because the machine may be busy."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def gone(pid: int) -> bool:
    return not start_time(pid)


# --- one server --------------------------------------------------------------------------------------------------


def test_no_line_of_a_log_can_write_to_the_terminal(tmp_path: Path) -> None:
    """Last lines and the named cause are plain text, also where the part that is read begins within a sequence."""
    log = tmp_path / "s.log"
    log.write_text("\x1b[31mOSError: [Errno 98]\x1b[0m it is \x1b[1mtaken\x1b[0m\x9b1m\u202e\r\nvLLM \x1b(Bends\x1b")
    assert tail(log) == "OSError: [Errno 98] it is taken1m\nvLLM ends"
    assert tail(log, most_bytes=20) == "vLLM ends"
    log.write_text("\x1b[31mValueError\x1b[0m: \x1b[1mno such thing\x1b[0m")
    assert explain(log, 1).cause == "ValueError: no such thing"


def test_a_server_becomes_ready_and_stops_with_every_process(run_dir: Path, stub: Factory) -> None:
    """A slow server is waited for, its start time measured, and stopping it ends a worker in another session too."""
    steps: list[tuple[float, str]] = []
    server = start(run_dir, stub("slow")())
    server.wait(progress=lambda elapsed_s, line: steps.append((elapsed_s, line)))
    assert server.state == "ready"
    assert server.healthy
    assert server.start_s is not None
    assert server.start_s >= 0.3
    assert steps
    pids = members(server.token, roots=[server.supervisor[0]])
    assert len(pids) == 3, "supervisor, server, and the worker that changed its session and dropped its environment"
    server.stop()
    assert server.state == "stopped"
    assert all(gone(pid) for pid in pids)
    assert "Loading weights from a stub" in server.log.read_text()
    assert server.log.read_text().startswith("# prefixscope ")


def test_a_server_that_ignores_sigterm_is_killed(run_dir: Path, stub: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the grace period a server that ignores SIGTERM is ended all the same."""
    monkeypatch.setattr(server_module, "GRACE_S", 0.3)
    server = start(run_dir, stub("stubborn")())
    server.wait()
    server.stop()
    assert gone(server.process[0])
    assert server.noted()["returncode"] == -signal.SIGKILL


def test_a_server_without_a_health_page_is_ready_when_it_lists_models(run_dir: Path, stub: Factory) -> None:
    """Where ``/health`` is a 404, ``/v1/models`` decides."""
    server = start(run_dir, stub("models")())
    server.wait()
    assert healthy(server.url)
    server.stop()


def test_a_server_that_is_never_ready_times_out_and_is_stopped(run_dir: Path, stub: Factory) -> None:
    """A timeout says what the server was last doing, and leaves nothing running."""
    server = start(run_dir, stub("never")())
    assert eventually(lambda: "weather" in tail(server.log))
    with pytest.raises(StartTimeout, match="Waiting for the weather") as caught:
        server.wait(timeout_s=0.1)
    assert str(server.log) in str(caught.value)
    assert gone(server.process[0])
    assert not is_alive(*server.supervisor)


def test_a_server_that_dies_while_it_is_needed_says_so(run_dir: Path, stub: Factory) -> None:
    """``ensure_alive`` passes while a server runs; once it is killed it tells how it ended."""
    server = start(run_dir, stub("slow")())
    server.wait()
    server.ensure_alive()
    os.kill(server.process[0], signal.SIGKILL)
    assert eventually(lambda: not server.alive)
    with pytest.raises(Exited, match=r"ended while it was needed.*SIGKILL") as caught:
        server.ensure_alive()
    assert "memory" in caught.value.cause


def test_a_start_that_fails_shows_cause_remedy_and_last_lines(run_dir: Path, stub: Factory, tmp_path: Path) -> None:
    """The error of a server that dies holds the cause in words, the remedy, the last log lines and the log's path."""
    (tmp_path / "retention").write_text(
        "ValueError: prefix_cache_retention_interval (100) must be non-negative and a multiple of "
        "scheduler_block_size (64).\nRuntimeError: Engine core initialization failed. See root cause above."
    )
    server = start(run_dir, stub("dies:retention")())
    with pytest.raises(Exited) as caught:
        server.wait()
    assert "64 tokens" in caught.value.cause
    assert "64 or 128" in caught.value.remedy
    assert "Engine core initialization failed" in caught.value.detail
    assert str(run_dir / "logs" / "s01.log") in str(caught.value)


def test_a_start_that_is_killed_blames_the_memory(run_dir: Path, stub: Factory) -> None:
    """A server ended by signal 9 before it was ready is taken for one that ran out of memory."""
    server = start(run_dir, stub("killed")())
    with pytest.raises(Exited, match="SIGKILL") as caught:
        server.wait()
    assert "memory" in caught.value.cause


@pytest.mark.parametrize(("mode", "word"), [(None, "was not found"), (0o644, "can't be run")])
def test_a_command_that_cannot_run(run_dir: Path, tmp_path: Path, mode: int | None, word: str) -> None:
    """A missing or not executable program is named, without waiting for anything."""
    program = tmp_path / "no-such-vllm"
    if mode is not None:
        program.write_text("#!/bin/sh\n")
        program.chmod(mode)
    port = free_port()
    with pytest.raises(Exited, match=word):
        start(run_dir, ServerCommand(argv=(str(program), "serve"), url=f"http://127.0.0.1:{port}", port=port))


# --- ports -------------------------------------------------------------------------------------------------------


def test_a_taken_port_is_refused_before_anything_starts(run_dir: Path, stub: Factory) -> None:
    """A port that someone listens on is refused, naming the port and the process, and no log is begun."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = int(other.getsockname()[1])
        assert port_taken(port)
        assert listeners(port) == {os.getpid()}
        with pytest.raises(ServerError, match=rf"port {port} is taken by pid {os.getpid()}"):
            start(run_dir, stub("slow", port)())
    assert not (run_dir / "logs").exists()
    assert not port_taken(port)


def test_an_answer_from_another_process_does_not_count(run_dir: Path, stub: Factory) -> None:
    """If someone else takes the port while ours starts, the start fails instead of measuring a stranger."""
    port = free_port()
    server = start(run_dir, stub("never", port)())
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        threading.Thread(target=_answer_once, args=(other,), daemon=True).start()
        with pytest.raises(Exited, match="another process answers"):
            server.wait()
    assert gone(server.process[0])


def _answer_once(listening: socket.socket) -> None:
    connection, _ = listening.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")


# --- whatever happens to us ---------------------------------------------------------------------------------------


def _owner(run_dir: Path, command: ServerCommand) -> tuple[subprocess.Popen[str], str]:
    """A process that holds a pool with one ready server, and that server's token."""
    source = str(Path(server_module.__file__).parent.parent)
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(run_dir), str(command.port), *command.argv],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": source},
    )  # fmt: skip
    assert owner.stdout is not None
    return owner, owner.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_when_the_owner_ends(run_dir: Path, stub: Factory, number: int) -> None:
    """Kill −9 of the owner, or Ctrl-C to its whole group, leaves no server, no worker and no supervisor."""
    owner, token = _owner(run_dir, stub("slow")())
    server = Pool(run_dir).servers()[0]
    assert server.token == token
    pids = members(token, roots=[server.supervisor[0]]) | {server.supervisor[0]}
    assert len(pids) == 3
    os.killpg(owner.pid, number)
    owner.communicate()
    assert eventually(lambda: all(gone(pid) for pid in pids))
    if number == signal.SIGKILL:
        assert server.noted()["reason"] == "owner gone"


def test_a_killed_supervisor_takes_the_server_with_it(run_dir: Path, stub: Factory) -> None:
    """Kill −9 of the supervisor asks the server to end, and stopping it afterwards is no error."""
    server = start(run_dir, stub("slow")())
    server.wait()
    os.kill(server.supervisor[0], signal.SIGKILL)
    assert eventually(lambda: gone(server.process[0]))
    server.stop()


def test_a_recycled_pid_is_not_mistaken() -> None:
    """A pid with another start time is another process."""
    assert is_alive(os.getpid(), start_time(os.getpid()))
    assert not is_alive(os.getpid(), start_time(os.getpid()) - 1)


def test_a_container_is_ended_by_its_stop_command(run_dir: Path, stub: Factory, tmp_path: Path) -> None:
    """A server that is nobody's child, as in a container, is ended by the stop command, whose words reach the log."""
    inner = stub("plain")()
    client = "import os,sys,time; os.fork() or (os.setsid(), os.execve(sys.argv[1], sys.argv[1:], {})); time.sleep(600)"
    stop = "import os,signal,sys; [os.kill(int(pid), signal.SIGKILL) for pid in open(sys.argv[1])]; print('stopped it')"
    command = ServerCommand(
        argv=(sys.executable, "-I", "-S", "-c", client, *inner.argv), url=inner.url, port=inner.port, container=True,
        stop_argv=(sys.executable, "-I", "-S", "-c", stop, str(tmp_path / "pids")),
    )  # fmt: skip
    server = start(run_dir, command)
    server.wait()
    pid = int((tmp_path / "pids").read_text())
    server.stop()
    assert gone(pid)
    assert "stopped it" in server.log.read_text()


def test_the_supervisor_needs_nothing_heavy() -> None:
    """The supervisor imports the standard library and two small modules of ours, so that it starts at once."""
    source = str(Path(server_module.__file__).parent.parent)
    code = (
        f"import sys; sys.path.append({source!r}); import prefixscope.supervisor;"
        "print(*sorted(name for name in sys.modules if name.split('.')[0] == 'prefixscope' or name == 'asyncio'))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["prefixscope", "prefixscope.processes", "prefixscope.supervisor"]


# --- sharing through the run directory ----------------------------------------------------------------------------

OTHER = Setting(drafter=False)
THIRD = Setting(interval=1024)


def test_two_pools_share_a_kept_server(run_dir: Path, stub: Factory) -> None:
    """A server released with ``keep`` is taken over by a later stage's pool, without a second start."""
    first, second = Pool(run_dir), Pool(run_dir)
    server = first.acquire(Setting(), stub("plain"))
    assert (server.id, server.reused) == ("s01", False)
    first.release(server, keep=True)
    again = second.acquire(Setting(), stub("plain"))
    assert (again.id, again.process, again.reused) == ("s01", server.process, True)
    assert again.start_s == server.start_s
    second.release(again)
    assert gone(server.process[0])
    assert not list((run_dir / "servers").glob(f"{Setting().id}.json"))


def test_ids_are_never_used_twice(run_dir: Path, stub: Factory) -> None:
    """Server ids go on counting in a resumed run directory."""
    with Pool(run_dir) as pool:
        assert pool.acquire(Setting(), stub("plain")).id == "s01"
    with Pool(run_dir) as pool:
        assert pool.acquire(Setting(), stub("plain")).id == "s02"


def test_only_one_idle_server_is_kept(run_dir: Path, stub: Factory) -> None:
    """Of two kept servers the older one is stopped."""
    pool = Pool(run_dir)
    one, two = pool.acquire(Setting(), stub("plain")), pool.acquire(OTHER, stub("plain"))
    pool.release(one, keep=True)
    assert one.alive
    pool.release(two, keep=True)
    assert two.alive
    assert gone(one.process[0])


def test_a_prefetched_server_is_ready_sooner(run_dir: Path, stub: Factory) -> None:
    """A prefetched server starts in the background; its start time is its own, not the time until someone asked."""
    pool = Pool(run_dir)
    assert pool.prefetch(Setting(), stub("slow"))
    assert eventually(lambda: pool.servers()[0].noted().get("state") == "ready")
    time.sleep(0.5)
    asked = time.time()
    server = pool.acquire(Setting(), stub("slow"))
    assert not server.reused
    assert server.ready_at is not None
    assert server.ready_at < asked
    assert len(list((run_dir / "logs").iterdir())) == 1


def test_a_failed_prefetch_is_raised_on_acquire_and_may_be_retried(
    run_dir: Path, stub: Factory, tmp_path: Path
) -> None:
    """The failure of a prefetched server shows when it is needed; the next attempt starts a new one."""
    (tmp_path / "flag").write_text("api_server.py: error: unrecognized arguments: --no-such-flag")
    pool = Pool(run_dir)
    assert pool.prefetch(Setting(), stub("dies:flag"))
    with pytest.raises(Exited, match="does not know --no-such-flag"):
        pool.acquire(Setting(), stub("plain"))
    assert pool.servers()[0].state == "failed"
    assert pool.acquire(Setting(), stub("plain")).id == "s02"


def test_a_server_that_runs_alone_makes_room(run_dir: Path, stub: Factory) -> None:
    """A server that fills its machine stops idle ones, is not prefetched beside another, and waits for held ones."""
    pool = Pool(run_dir)
    port = free_port()
    one = pool.acquire(Setting(), stub("plain", port, alone=True))
    assert not pool.prefetch(OTHER, stub("plain", alone=True))
    with pytest.raises(ServerError, match="still in use"):
        pool.acquire(OTHER, stub("plain", alone=True))
    pool.release(one, keep=True)
    two = pool.acquire(OTHER, stub("plain", port, alone=True))
    assert gone(one.process[0])
    assert two.healthy


def test_a_lease_of_a_dead_server_is_cleaned(run_dir: Path, stub: Factory) -> None:
    """A lease whose server died while idle is replaced by a new start."""
    pool = Pool(run_dir)
    server = pool.acquire(Setting(), stub("plain"))
    pool.release(server, keep=True)
    os.kill(server.process[0], signal.SIGKILL)
    assert eventually(lambda: not server.alive)
    assert pool.acquire(Setting(), stub("plain")).id == "s02"
    assert [each.id for each in pool.servers()] == ["s02"]


def test_a_resumed_run_does_not_use_a_dead_owners_server(run_dir: Path, stub: Factory) -> None:
    """Right after its owner was killed a server is not taken over, though it still answers for a moment."""
    owner, _ = _owner(run_dir, stub("plain")())
    old = Pool(run_dir).servers()[0]
    os.kill(owner.pid, signal.SIGKILL)
    owner.communicate()
    new = Pool(run_dir).acquire(Setting(), stub("plain"))
    assert (old.id, new.id, new.reused) == ("s01", "s02", False)
    assert gone(old.process[0])


def test_a_stage_stops_what_it_did_not_release(run_dir: Path, stub: Factory) -> None:
    """Leaving a stage's pool, by an error too, stops the servers that it held, and only these."""
    owner = os.getppid()
    with Pool(run_dir, owner) as earlier:
        kept = earlier.acquire(OTHER, stub("plain"))
        earlier.release(kept, keep=True)
    started = []

    def fail() -> None:
        with Pool(run_dir, owner) as stage:
            started.append(stage.acquire(Setting(), stub("plain")))
            raise KeyError("a stage fails")

    with pytest.raises(KeyError):
        fail()
    assert gone(started[0].process[0])
    assert kept.alive


# --- the log in words ----------------------------------------------------------------------------------------------

KNOWN = [
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", 1, "out of memory", "gpu-memory"),
    ("ValueError: No available memory for the cache blocks. Try", 1, "KV cache", "gpu-memory-utilization"),
    ("ValueError: (4.0 GiB KV cache is needed, which is larger than the available KV cache memory (1 GiB)", 1,
     "one request", "--max-model-len"),
    ("(EngineCore pid=3) something", -9, "signal 9", "dmesg"),
    ("api_server.py: error: unrecognized arguments: --nosuch 7", 2, "does not know --nosuch 7", "--serve-cmd"),
    ("error: unrecognized arguments: --prefix-cache-retention-interval 64", 2, "release has no", "0.29.0"),
    ("prefix_cache_retention_interval (100) must be non-negative and a multiple of scheduler_block_size (64).", 1,
     "100", "64 or 128"),
    ("prefix_cache_retention_interval is set but this model has no sliding-window or Mamba KV cache group", 1,
     "full attention", "default"),
    ("ValueError: Chunked MM input disabled but max_tokens_per_mm_item (2496) is larger than max_num_batched_tokens"
     " (2048). Please", 1, "2,496 tokens", "--max-num-batched-tokens 2496"),
    ("OSError: [Errno 98] error while attempting to bind on address: address already in use", 1, "port", "{port}"),
    ('docker: Conflict. The container name "/vllm" is already in use by container "ab12".', 125, "named vllm", "--rm"),
    ("huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder", 1,
     "the model can't be found", "HF_HUB_OFFLINE"),
    ("1 validation error for SpeculativeConfig\n  Value error, Invalid repository ID or local directory specified: "
     "'nodrafter'.", 1, "drafter", '"model"'),
    ("", 127, "vllm was not found", "path"),
    ("KeyError: 'gate'\nRuntimeError: Engine core initialization failed. See root cause above.", 1, "KeyError: 'gate'",
     "read the log"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "code", "cause", "remedy"), KNOWN)
def test_a_known_message_is_explained(tmp_path: Path, text: str, code: int, cause: str, remedy: str) -> None:
    """Each message that vLLM or a runtime is known to end with gives its cause and the flag that helps."""
    log = tmp_path / "s.log"
    log.write_text(f"INFO 11-29 21:17:04 [api.py:1] version 0.29.0\n{text}\n")
    found = explain(log, code, ["vllm"])
    assert cause in found.cause
    assert remedy in found.remedy


def test_legal_intervals_lie_on_both_sides() -> None:
    """The neighbours of an illegal interval are the multiples below and above; a legal one is its own."""
    assert legal_neighbours(100, 64) == [64, 128]
    assert legal_neighbours(128, 64) == [128]
    assert legal_neighbours(-5, 64) == [0, 64]


def test_progress_shows_the_last_telling_line(tmp_path: Path) -> None:
    """Banners, bars and empty lines are passed over, and vLLM's prefix is taken off."""
    log = tmp_path / "s.log"
    log.write_text(
        "(APIServer pid=4545) INFO 11-29 21:17:12 [model.py:684] Resolved architecture: Gemma4ForCausalLM\n"
        "(APIServer pid=4545) INFO 11-29 21:17:04 [api_utils.py:347]   █▄█▀ █     █\n\n"
        "(EngineCore pid=4735) INFO 11-29 21:17:25 [omp.py:185] \treserved_cpus=[1]\n"
    )
    assert latest_step(log) == "Resolved architecture: Gemma4ForCausalLM"
    log.write_text(
        "\x1b[0;36m(EngineCore pid=99)\x1b[0;0m INFO 11-30 09:00:00 [\x1b[1mcore.py:77\x1b[0m] "
        "\x1b[38;5;214mLoading safetensors shards\x1b[0m\x07 from\x1b]8;;file://x\x1b\\ the folder\x1b[0"
    )
    assert latest_step(log) == "Loading safetensors shards from the folder"
    assert latest_step(log, width=20) == "Loading safetensors…"
    assert latest_step(tmp_path / "none.log") == ""
