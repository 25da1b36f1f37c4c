"""Law: whatever is sent to the server, it answers as its documentation says, and never with 5xx
for what the client did.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings

from ..lazily import needs
from .serving import MODEL, Server, fake_vllm, lora, write_adapter

if TYPE_CHECKING:
    import schemathesis

NO_VLLM = 503  # is what a client is told while vLLM is stopped, as it may be here


@needs("litestar", "schemathesis")
@pytest.mark.parametrize("examples", [4, pytest.param(50, marks=pytest.mark.exhaustive)])
def test_every_answer_is_one_of_the_documentation(tmp_path: Path, examples: int) -> None:
    """With so many requests to each endpoint."""
    import schemathesis

    options = ("--model", MODEL, "--max-upload-mb", "1", *fake_vllm(tmp_path / "vllm"))
    with Server(tmp_path / "state", *options) as server:
        server.put_adapter("0", write_adapter(tmp_path / "adapter", lora()))
        api = schemathesis.openapi.from_url(f"{server.url}/schema/openapi.json")
        operations = [found.ok() for found in api.get_all_operations()]
        assert len(operations) >= 15
        for operation in operations:
            try_out(operation, examples)
        assert "Traceback" not in server.said


def try_out(operation: "schemathesis.APIOperation", examples: int) -> None:
    """Send requests that an endpoint's documentation allows, and others."""
    import schemathesis

    @given(case=operation.as_strategy())
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    def allowed(case: "schemathesis.Case") -> None:
        check(case)

    @given(case=operation.as_strategy(schemathesis.GenerationMode.NEGATIVE))
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    def forbidden(case: "schemathesis.Case") -> None:
        check(case)

    allowed()
    if operation.body or operation.path_parameters:
        forbidden()


def check(case: "schemathesis.Case") -> None:
    from schemathesis.specs.openapi import checks

    stated = [
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    ]
    answer = case.call(timeout=120)
    assert answer.status_code < 500 or answer.status_code == NO_VLLM, answer.text
    case.validate_response(answer, checks=stated)
