"""The shapes in which providers refuse, each as the name of a setting."""

from collections.abc import Callable
from typing import Any, Literal, get_args

import msgspec

Shape = Literal[
    "openai", "gemini", "mistral", "fastapi", "fastapi-text", "xai", "cohere", "vllm-flat",
    "openrouter", "text", "html",
]  # fmt: skip
SHAPES: tuple[Shape, ...] = get_args(Shape)


def shaped(shape: Shape, error: dict[str, Any]) -> bytes:
    """The body of an error with a `message`, `type`, `param` and `code`, in that shape."""
    body = _SHAPES[shape](error)
    return body.encode() if isinstance(body, str) else msgspec.json.encode(body)


def _of_pydantic(error: dict[str, Any]) -> list[dict[str, Any]]:
    place = ["body", *(error["param"] or "").split(".")] if error["param"] else ["body"]
    return [{"type": "extra_forbidden", "loc": place, "msg": error["message"], "input": 1}]


_SHAPES: dict[Shape, Callable[[dict[str, Any]], Any]] = {
    "openai": lambda error: {"error": error},
    "gemini": lambda error: [
        {"error": {"code": 400, "message": error["message"], "status": "INVALID_ARGUMENT"}}
    ],
    "mistral": lambda error: {
        "object": "error",
        "message": {"detail": _of_pydantic(error)},
        "type": "invalid_request_error",
        "param": None,
        "code": None,
    },
    "fastapi": lambda error: {"detail": _of_pydantic(error)},
    "fastapi-text": lambda error: {"detail": error["message"]},
    "xai": lambda error: {
        "code": "Client specified an invalid argument", "error": error["message"]
    },
    "cohere": lambda error: {"id": "e2e1", "message": error["message"]},
    "vllm-flat": lambda error: {
        "object": "error", "message": error["message"], "type": "BadRequestError", "param": None,
        "code": 400,
    },
    "openrouter": lambda error: {
        "error": {
            "code": 400,
            "message": "Provider returned error",
            "metadata": {
                "raw": msgspec.json.encode({"error": error}).decode(), "provider_name": "P"
            },
        }
    },
    "text": lambda error: f"{error['message']}\n",
    "html": lambda error: f"<html><style>p {{}}</style><p>{error['message']}</p></html>",
}  # fmt: skip
