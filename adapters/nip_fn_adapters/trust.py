"""Trust in recordings: code and servers that they name are used only if the user named them, too.

A recording is a file that anybody may have written, and it names Python code (see `extensions`),
servers, and the variables that hold keys for them.  None of these is used because a recording says
so: the user must have named the same thing before, on a command line or in a configuration, or say
that the recording is trusted.  What was named is remembered in a file that only the user can write.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nip_fn.config.hosting import provider_kind
from nip_fn.errors import Problem
from nip_fn.params.run import HyperParameters

VARIABLE = "NIP_FN_TRUST"  # trusts every recording, if it is neither empty nor 0
HOW = "--trust (in Python: trust=True)"

_unwritten: set[str] = set()  # remembered for this process alone: the file cannot be written


def trusts_all() -> bool:
    """True if the user trusts every recording that is opened."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


@contextmanager
def trusting() -> Iterator[None]:
    """Trust every recording within the block; processes that are started there do so, too."""
    before = os.environ.get(VARIABLE, "")
    os.environ[VARIABLE] = "1"
    try:
        yield
    finally:
        os.environ[VARIABLE] = before


def is_remembered(mark: str) -> bool:
    """True if the user has named this before."""
    return mark in _unwritten or mark in _marks()


def remember(marks: Iterable[str]) -> None:
    """Remember what the user has named."""
    new = sorted(set(marks) - _marks())
    if not new:
        return
    try:
        file = _file()
        file.parent.mkdir(parents=True, exist_ok=True)
        # Nobody else is to add to it.  One write at the end: two commands may do so at once.
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, "".join(f"{mark}\n" for mark in new).encode())
        finally:
            os.close(descriptor)
    except OSError:  # a home that is read-only, as in many containers
        _unwritten.update(new)


def texts(table: object, field: str = "") -> Iterator[tuple[str, str]]:
    """(field, text) of every text in a table, at any depth."""
    if isinstance(table, str):
        yield field.rpartition(".")[2], table
    elif isinstance(table, Mapping):
        for name, value in table.items():
            yield from texts(value, str(name))
    elif isinstance(table, list | tuple):
        for value in table:
            yield from texts(value, field)


def servers_in(table: Mapping[str, Any]) -> Iterator[str]:
    """The marks of the servers, and of the variables with keys, that a table names."""
    for field, text in texts(table):
        if field in _ADDRESSES:
            yield from map(_server, text.split(","))
        elif field == "api_key_variable":
            yield _key(text)


def server_problem(params: HyperParameters) -> Problem | None:
    """The problem of the first server, or key for one, that the user has never named.

    A recording may name any, and prompts, data and keys would be sent there.
    """
    for agent in params.agents:
        if provider_kind(agent) not in ("api", "self-hosted"):
            continue
        mine = {name: getattr(agent, name) for name in (*_ADDRESSES, "api_key_variable")}
        for mark in servers_in(mine):
            if trusts_all():
                remember([mark])
            elif not (_is_here(mark) or is_remembered(mark)):
                what = mark.replace("key", "the key in", 1)
                return Problem(
                    f"the recording names {what}, which you have not named before",
                    f"agents.{agent.name}",
                    f"name it again (--base-url URL, --set A.B=C), or say {HOW}",
                )
    return None


_ADDRESSES = ("api_base_url", "language_model_server_scheme_host")


def _server(address: str) -> str:
    return f"server {address.strip().rstrip('/')}"


def _key(variable: str) -> str:
    return f"key {variable}"


def _is_here(mark: str) -> bool:
    """True for the mark of a server on this machine: nothing leaves it."""
    subject, _, address = mark.partition(" ")
    try:
        return subject == "server" and urlsplit(address).hostname in (
            "localhost",
            "127.0.0.1",
            "::1",
        )
    except ValueError:  # no address at all, which is refused where it is used
        return False


def _marks() -> set[str]:
    try:
        return set(_file().read_text("utf-8", errors="replace").splitlines())
    except OSError:
        return set()


def _file() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "nip-fn" / "trusted"
