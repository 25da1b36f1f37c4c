"""The sandbox: it runs programs that nobody trusts, and says how each run ended."""

from nip_fn_adapters.sandbox.backends import BACKENDS, Level
from nip_fn_adapters.sandbox.box import Sandbox, open_sandbox

__all__ = ["BACKENDS", "Level", "Sandbox", "open_sandbox"]
