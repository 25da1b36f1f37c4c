"""`nip-fn view`: the report of a run, served while the run goes on."""

from pathlib import Path
from typing import Annotated

import typer

from nip_fn_adapters.recording.following import Live, follow
from nip_fn_adapters.recording.runs import checkpoint_file
from nip_fn_cli.shown.exits import Exit, die, or_exit, say
from nip_fn_cli.shown.options import PricesOption, RunsOption, TrustOption, money_or_die

HOST = "127.0.0.1"


def view_command(
    run: Annotated[
        Path, typer.Argument(help="A run's folder, its name, or its checkpoint.msgpack.")
    ],
    port: Annotated[
        int, typer.Option(help="The port on this machine; 0 for any.", min=0, max=65535)
    ] = 8640,
    prices: PricesOption = None,
    runs: RunsOption = Path("runs"),
    trust: TrustOption = False,
) -> None:
    """Serve the report of a run to browsers on this machine, while the run goes on.

    The page follows the recording, and changes nothing.  Ctrl-C stops it.
    """
    try:
        from nip_fn_adapters.recording import viewing
        from nip_fn_adapters.serving.running import bind
    except ModuleNotFoundError as error:
        die(Exit.USAGE, f'nip-fn view needs {error.name}: pip install "nip-fn[serve]"')
    path = or_exit(checkpoint_file(run, runs))
    followed = or_exit(follow(path))
    bound = or_exit(bind(HOST, port, "choose another --port; 0 is any that is free"))

    def ready(port: int) -> None:
        print(f"http://{HOST}:{port}", flush=True)
        say(f"nip-fn view: following {path}; Ctrl-C stops it")

    viewing.serve_page(Live(path, money_or_die(prices=prices).prices, followed), bound, ready)
