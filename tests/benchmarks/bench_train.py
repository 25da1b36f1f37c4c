"""Training by trl, which reads every row by itself, on packed rows, and the limit of both.

`nip-fn bench train` measures the same of any model.
"""

from nip_fn_adapters.local.bench import RANDOM, measure

TREES = {"builtin:tea": 24, RANDOM: 2}


def run() -> list[tuple[str, str]]:
    """Name and figure of each measurement, in processor time."""
    table = []
    for model, trees in TREES.items():
        speeds = measure(model, trees, repeats=2, threads=1)
        plain, packed, steps, limit = (speed.seconds for speed in speeds.values())
        table += [
            (f"training, {model}, trl : packed", f"{plain / packed:.1f}"),
            (f"training, {model}, a packed step : the limit", f"{steps / limit:.2f}"),
            (
                f"training, {model}, packed, peak memory against trl's",
                f"{speeds['packed'].gigabytes:.2f} GB : {speeds['plain'].gigabytes:.2f} GB",
            ),
        ]
    return table


if __name__ == "__main__":
    for told, figure in run():
        print(f"{told:70} {figure}")
