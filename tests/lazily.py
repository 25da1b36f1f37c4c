"""Packages that take seconds to import, imported when a test first uses them.

Every worker collects all tests, and one or two of them run those of a package.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import accelerate as accelerate
    import datasets as datasets
    import torch as torch
    import transformers as transformers
    import trl as trl
    from safetensors import torch as safetensors
    from torch.nn import functional as functional
else:

    class Lazily:
        """A module by its name."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            if name.startswith(("_", "pytest")):  # which pytest asks of everything
                raise AttributeError(name)
            return getattr(import_module(self._name), name)

    accelerate = Lazily("accelerate")
    datasets = Lazily("datasets")
    functional = Lazily("torch.nn.functional")
    safetensors = Lazily("safetensors.torch")
    torch = Lazily("torch")
    transformers = Lazily("transformers")
    trl = Lazily("trl")


def needs(*packages: str) -> pytest.MarkDecorator:
    """Skip where a package is not installed: `importorskip` would import it in every worker."""
    missing = [package for package in packages if find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")
