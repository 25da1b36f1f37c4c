"""`nip-fn view`: the report of a run, served while the run goes on."""

from pathlib import Path

from nip_fn_adapters.experiments.budgets import Money
from nip_fn_adapters.recording.following import Live, follow
from nip_fn_adapters.recording.runs import checkpoint_file
from nip_fn_cli.shown.exits import Exit, die, or_exit, say

HOST = "127.0.0.1"


def view_command(given: Path, port: int, *, money: Money, runs: Path) -> None:
    """Serve until SIGTERM or SIGINT."""
    try:
        from nip_fn_adapters.recording import viewing
        from nip_fn_adapters.serving.running import bind
    except ModuleNotFoundError as error:
        die(Exit.USAGE, f'nip-fn view needs {error.name}: pip install "nip-fn[serve]"')
    path = or_exit(checkpoint_file(given, runs))
    followed = or_exit(follow(path))
    bound = or_exit(bind(HOST, port, "choose another --port; 0 is any that is free"))

    def ready(port: int) -> None:
        print(f"http://{HOST}:{port}", flush=True)
        say(f"nip-fn view: following {path}; Ctrl-C stops it")

    viewing.run(Live(path, money.prices, followed), bound, ready)
