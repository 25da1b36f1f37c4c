"""The door of the command: interrupting it while its modules are still imported is no error."""

import sys


def main() -> None:
    """Run the command of `nip_fn_cli.main`; ends with `SystemExit`."""
    try:
        from nip_fn_cli.main import main as run

        run()
    except KeyboardInterrupt:
        print("nip-fn: interrupted", file=sys.stderr)
        sys.exit(130)
