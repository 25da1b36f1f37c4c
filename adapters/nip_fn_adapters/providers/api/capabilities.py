"""The form in which a server takes requests, as its refusals teach it.

nip-fn adds fields of its own to a request: they are left out where a server refuses them.  What a
user has set is never left out.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from nip_fn.params.agent import fields_in
from nip_fn.run.request import Request
from nip_fn_adapters.providers.api.retries import RequestFailure

# Fields that a request can do without.  The sampling parameters are not among them: leaving out a
# temperature that was set would change the experiment without a word.
OPTIONAL = ("seed", "prompt_cache_key", "logprobs", "top_logprobs", "return_token_ids", "name")

# The fields that an agent's parameters set, where their names differ.
_PARAMETERS = {
    "model": "model_name",
    "max_tokens": "max_tokens_per_message",
    "max_completion_tokens": "max_tokens_per_message",
    "n": "replies_per_request",
    "messages": "",
}
# Words that a message may hold without being about the field of that name.
_COMMON_WORDS = ("model", "messages")


class Capabilities(NamedTuple):
    """The learnt capabilities of a model at a server; initially all are assumed."""

    several: bool = True  # it takes n
    new_limit: bool = False  # it takes max_completion_tokens in place of max_tokens
    left_out: frozenset[str] = frozenset()  # fields that it refuses


def learn(capabilities: Capabilities, failure: RequestFailure) -> Capabilities | None:
    """The server's capabilities as a refusal corrects them; None if it is about the request itself.

    Servers name the offending field in `param`, or only in the message.

    >>> learn(Capabilities(), RequestFailure("refused", 400, "Only n = 1.", param="n")).several
    False
    >>> learn(Capabilities(), RequestFailure("refused", 400, "max_completion_tokens!")).new_limit
    True
    >>> learn(Capabilities(), RequestFailure("refused", 400, "must be 1", param="temperature"))
    """
    if not _is_about_the_form(failure):
        return None
    fields = ("n", "max_tokens", *OPTIONAL)
    named = [field for field in fields if failure.param.rpartition(".")[2] == field]
    # What `param` names is certain; a message may mention a field by the way.
    for field in named or [field for field in fields if _names(failure.message, field)]:
        if field == "n" and capabilities.several:
            return capabilities._replace(several=False)
        if field in OPTIONAL and field not in capabilities.left_out:
            return capabilities._replace(left_out=capabilities.left_out | {field})
    # OpenAI's newer models refuse max_tokens with this code; other servers only name the field that
    # they want instead.
    unsupported = failure.code == "unsupported_parameter" and "max_tokens" in named
    if not capabilities.new_limit and (unsupported or "max_completion_tokens" in failure.message):
        return capabilities._replace(new_limit=True)
    return None


class OtherForm(NamedTuple):
    """A form in which a refused request may be accepted."""

    capabilities: Capabilities
    is_guessed: bool  # the refusal does not name what is left out


def other_form(
    used: Capabilities, failure: RequestFailure, request: Request, sent: frozenset[str]
) -> OtherForm | None:
    """The form to try after a refusal; None if it is about what the user has set, or none is left.

    Where a refusal names no field, all optional fields are left out, and n only after them: without
    it, each reply costs a prompt.

    Args:
        used: the form that was refused.
        failure: the refusal.
        request: what was requested.
        sent: the fields among `OPTIONAL` and n that were sent and may be left out.
    """
    learnt = learn(used, failure)
    if learnt is not None and ("n" in sent or learnt.several == used.several):
        return OtherForm(learnt, is_guessed=False)
    understood = parameter_of(failure, request) is not None
    if understood or not sent or not _is_about_the_form(failure):
        return None
    optional = sent - {"n"}
    fewer = used._replace(
        left_out=used.left_out | optional, several=used.several and bool(optional)
    )
    return OtherForm(fewer, is_guessed=True)


def parameter_of(failure: RequestFailure, request: Request) -> str | None:
    """The agent's parameter that a refusal is about; "" for the chat, None if it names no field."""
    extra = {name: f"extra_request_fields.{name}" for name in fields_in(request.extra_fields)}
    plain = {name: name for name in ("temperature", "top_p", "repetition_penalty")}
    set_by_user = {name: name for name in plain if getattr(request, name) is not None}
    for field, parameter in {**extra, **set_by_user, **_PARAMETERS}.items():
        if failure.param.partition(".")[0] == field or _names(failure.message, field):
            return parameter
    return None


def _is_about_the_form(failure: RequestFailure) -> bool:
    # OpenAI: "You are not allowed to request logprobs from this model", with 403.
    if failure.kind == "forbidden" and _names(failure.message, "logprobs"):
        return True
    return failure.kind == "refused" and failure.status in (400, 422)


def _names(text: str, field: str) -> bool:
    if field == "name":
        # A common word: it counts in quotes, as the end of a path, or as that of a field.
        quoted = re.search(r"['\"`.]name\b", text)
        field_name = r"\b(argument|parameter|property|field|key)s?\b[^.'\"`]{0,30}\bname\b"
        return bool(quoted or re.search(field_name, text, re.IGNORECASE))
    marks = r"['\"`]" if field in _COMMON_WORDS else r"\b"
    return re.search(rf"{marks}{re.escape(field)}\b", text) is not None


def combine(first: Capabilities, second: Capabilities) -> Capabilities:
    """The capabilities in which both agree: concurrent requests may each have learnt something."""
    return Capabilities(
        first.several and second.several,
        first.new_limit or second.new_limit,
        first.left_out | second.left_out,
    )


def newly_learnt(before: Capabilities, after: Capabilities) -> Iterator[str]:
    """One line for each newly learnt capability, for people."""
    if after.several < before.several:
        yield "makes one reply at a time, so replies are requested one by one"
    if after.new_limit > before.new_limit:
        yield "takes max_completion_tokens in place of max_tokens"
    for field in sorted(after.left_out - before.left_out):
        yield f"does not take {field}, so it is left out"
