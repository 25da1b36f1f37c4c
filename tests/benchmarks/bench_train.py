"""Training by trl, which reads every row by itself, on packed rows, and the limit of both.

`nip-fn bench train` measures the same of any model, `--model random:60M` of a larger one in some
minutes.
"""

from nip_fn_adapters.providers.local.bench import measure

MODEL, TREES = "builtin:tea", 8


def run() -> list[tuple[str, str]]:
    """Name and figure of each measurement, in processor time."""
    speeds = measure(MODEL, TREES, repeats=1, threads=1).unwrap()
    seconds = {way: speed.seconds for way, speed in speeds.items()}
    memory = {way: f"{speed.gigabytes:.2f} GB" for way, speed in speeds.items()}
    return [
        (f"training, {told}, {way} : {other}", f"{seconds[way] / seconds[other]:.2f}")
        for told, way, other in (
            ("whole", "plain", "packed"),
            ("a step", "plain steps", "packed steps"),
            ("a step", "packed steps", "limit"),
        )
    ] + [("training, peak memory, plain : packed", f"{memory['plain']} : {memory['packed']}")]


if __name__ == "__main__":
    for told, figure in run():
        print(f"{told:70} {figure}")
