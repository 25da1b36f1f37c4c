"""The reason why a command ended too early: the signal that killed it, or its own last error."""

import re
import signal
from collections.abc import Iterator, Sequence
from itertools import takewhile

from nip_fn.errors import one_line

_TRACEBACK = re.compile(r"(.*)Traceback \(most recent call last\):$")
_ERROR = re.compile(r"[A-Za-z_][\w.]*(?::|$)")  # begins the end of a traceback
_USAGE = re.compile(r"[\w.-]+: error: \S.*")  # argparse's last line
_WARNING = re.compile(r"\bwarn(?:ing)?\b", re.IGNORECASE)
# Errors of vLLM that only say that another one of its processes has ended.
_OF_ANOTHER = re.compile(r"root cause|stack trace above|EngineDeadError|Executor failed\.$")


def exit_reason(code: int, printed: str) -> str:
    """The reason why a command ended, in one line.

    Args:
        code: Its exit code; of a signal, 128 more, or the negative, as a shell or Python gives it.
        printed: All that it printed from its last sign of life on.  What it survived before did
            not end it.
    """
    number = -code if code < 0 else code - 128
    if number in {*signal.Signals}:
        return signal_reason(signal.Signals(number))
    lines = printed.strip().splitlines()
    errors = [*_errors(lines)]
    telling = [error for error in errors if not _OF_ANOTHER.search(error)]
    if telling:
        return one_line(telling[-1])
    if errors:
        return "one of its processes ended without an error, as if killed for lack of memory"
    # The last line says it where Python itself fails, as of a module that is not there.
    plain = [line for line in lines if line.strip() and not _WARNING.search(line)]
    return one_line(f"{plain[-1] if plain else 'it printed nothing'} (exit code {code})")


def signal_reason(number: signal.Signals) -> str:
    """The description of an end by a signal; where memory is short, the kernel sends SIGKILL."""
    by_kernel = ", perhaps by the kernel because memory was short"
    return f"killed by {number.name}{by_kernel if number == signal.SIGKILL else ''}"


def _errors(lines: Sequence[str]) -> Iterator[str]:
    """The last lines of all tracebacks, and of argparse's refusals, in their order."""
    for index, line in enumerate(lines):
        begins = _TRACEBACK.match(line)
        if begins is not None:
            yield from _end_of_traceback(begins.group(1), lines[index + 1 :])
        elif _USAGE.fullmatch(line):
            yield line


def _end_of_traceback(prefix: str, lines: Sequence[str]) -> Iterator[str]:
    """The error of a traceback whose lines all begin with a logger's prefix, if it is there.

    Other processes' lines may stand between them.
    """
    prefixed = (line.removeprefix(prefix) for line in lines if line.startswith(prefix))
    error = next((line for line in prefixed if line and not line[0].isspace()), "")
    if not _ERROR.match(error):
        return
    # A validation error gives its reasons in indented lines below.
    reasons = takewhile(lambda line: line[:2] == "  ", prefixed)
    yield " ".join([error, *map(str.strip, reasons)])
