"""Why a command ended: a signal first, then the last error of those that it did not survive.

The logs are vLLM's own (0.32, shortened): of an engine and a worker that were killed, of a model
that it cannot serve, and of a start with few files.
"""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from nip_fn_adapters.processes.endings import exit_reason
from nip_fn_adapters.serving.processes import OwnedProcess

FEW_FILES = (
    "(APIServer pid=7) WARNING 11-23 03:31:13 [system_utils.py:255] Found ulimit of 20000 and "
    "failed to automatically increase with error current limit exceeds maximum limit. This can "
    "cause fd limit errors like `OSError: [Errno 24] Too many open files`. Consider increasing"
)
REFUSED = """
(APIServer pid=7) ERROR 11-23 03:31:20 [serving.py:240] Traceback (most recent call last):
(APIServer pid=7) ERROR 11-23 03:31:20 [serving.py:240]   File "serving.py", line 211, in load_lora
(APIServer pid=7) ERROR 11-23 03:31:20 [serving.py:240] ValueError: While loading /adapters/bad
"""
DEAD = """
(APIServer pid=7) ERROR 11-23 03:31:51 [async_llm.py:906] AsyncLLM output_handler failed.
(APIServer pid=7) ERROR 11-23 03:31:51 [async_llm.py:906] Traceback (most recent call last):
(APIServer pid=7) ERROR 11-23 03:31:51 [async_llm.py:906]   File "async_llm.py", line 849, in output
(APIServer pid=7) ERROR 11-23 03:31:51 [async_llm.py:906]     raise self._format_exception(outputs)
(APIServer pid=7) ERROR 11-23 03:31:51 [async_llm.py:906] vllm.v1.engine.EngineDeadError: \
EngineCore encountered an issue. See stack trace (above) for the root cause.
INFO:     Shutting down
nanobind: leaked 4 instances!
 - leaked instance 0x7fcc5a64cbc8 of type "triton._C.libtriton.ir.attribute"
"""
WORKER = """
(EngineCore pid=8) ERROR 11-23 03:34:04 [multiproc_executor.py:315] Worker proc VllmWorker-0 died
Process EngineCore:
Traceback (most recent call last):
  File "core.py", line 1702, in _handle_client_request
    raise RuntimeError("Executor failed.")
RuntimeError: Executor failed.
"""
OUT_OF_MEMORY = """
(EngineCore pid=8) ERROR 11-23 03:34:04 [core.py:1512] EngineCore encountered a fatal error.
(EngineCore pid=8) ERROR 11-23 03:34:04 [core.py:1512] Traceback (most recent call last):
(EngineCore pid=8) ERROR 11-23 03:34:04 [core.py:1512]   File "core.py", line 1496, in run
INFO:     127.0.0.1:4711 - "GET /health HTTP/1.1" 200 OK
(EngineCore pid=8) ERROR 11-23 03:34:04 [core.py:1512] torch.OutOfMemoryError: no memory is left
"""
INVALID = """
Traceback (most recent call last):
  File "api_server.py", line 46, in <module>
    main()
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, Model architectures ['NoSuchModel'] are not supported for now.
    For further information visit https://errors.pydantic.dev/2.12/v/value_error
"""


@pytest.mark.parametrize(
    ("code", "printed", "reason"),
    [
        (137, OUT_OF_MEMORY, "killed by SIGKILL, perhaps by the kernel"),
        (-9, "", "killed by SIGKILL, perhaps by the kernel"),
        (143, DEAD, "killed by SIGTERM"),
        (0, FEW_FILES + DEAD, "one of its processes ended without an error, as if killed"),
        (0, FEW_FILES + WORKER + DEAD, "one of its processes ended without an error, as if killed"),
        (0, FEW_FILES + OUT_OF_MEMORY + DEAD, "torch.OutOfMemoryError: no memory is left"),
        (1, INVALID, "ModelConfig Value error, Model architectures ['NoSuchModel'] are not"),
        (2, "usage: x\nserver.py: error: unrecognized arguments: --x", "unrecognized arguments"),
        (
            1,
            "/bin/python: No module named vllm\n" + FEW_FILES,
            "No module named vllm (exit code 1)",
        ),
        (1, FEW_FILES, "it printed nothing (exit code 1)"),
    ],
)
def test_the_reason_is_a_signal_or_the_last_telling_error(
    code: int, printed: str, reason: str
) -> None:
    said = exit_reason(code, printed)
    assert reason in said
    assert "Too many open files" not in said
    assert "\n" not in said


def ended(folder: Path, script: str, *, is_alive: bool = False) -> str:
    """The reason why a Python with that script ended; it `is_alive` after its first line."""

    async def wait() -> str:
        log = folder / "logs" / "child.log"
        process = OwnedProcess((sys.executable, "-uc", script), {}, log)
        while is_alive and "ready" not in log.read_text():
            await asyncio.sleep(0.01)
        if is_alive:
            process.note_life()
            (folder / "go").touch()
        return await process.wait()

    return asyncio.run(asyncio.wait_for(wait(), 60))


def test_a_child_that_is_killed_was_killed_whatever_its_log_says(tmp_path: Path) -> None:
    script = f"print({OUT_OF_MEMORY!r}); import os; os.kill(os.getpid(), {signal.SIGKILL:d})"
    assert ended(tmp_path, script).startswith("killed by SIGKILL, perhaps by the kernel")


def test_errors_that_were_survived_are_not_the_reason(tmp_path: Path) -> None:
    script = f"""
import pathlib, time
print({REFUSED!r} + "ready")
while not pathlib.Path({str(tmp_path / "go")!r}).exists():
    time.sleep(0.01)
print({DEAD!r})
"""
    assert "ended without an error" in ended(tmp_path, script, is_alive=True)
