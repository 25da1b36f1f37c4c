"""A search for hyperparameters: Optuna chooses the values, ASHA stops the runs that fall behind.

    pip install 'nip-fn[local]' 'ray[tune]' optuna
    python examples/tune.py --num 16 --jobs 2           # hours; --provider dummy: a minute
    nip-fn ls --runs runs/tune

Each trial is an ordinary run below `runs/tune`, named by its values, and can be shown, replayed and
resumed as any other.  After a kill the same command goes on: Ray Tune restores its decisions, and a
run that was under way resumes from its recording.

The winner was chosen by its tests: train it once more with other seeds before you believe them.
"""

import argparse
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.optuna import OptunaSearch

BASE = {"dataset": "builtin:tea"}
SPACE = {
    "rl.lr": tune.loguniform(3e-5, 3e-3),
    "agents._default.dpo_beta": tune.loguniform(0.03, 0.3),
}
