"""A training process that trains several jobs: its start takes longer than all of them.

python -m tests.adapters.several_jobs RUN THREADS JOB ...
"""

import sys

from nip_fn_adapters.providers.local import train


def main() -> None:
    """Train the jobs that the arguments name, one after the other."""
    from accelerate import Accelerator

    run, threads, *names = sys.argv[1:]
    # It disbands the processes, which still have other jobs to do.
    Accelerator.end_training = lambda self: None
    for name in names:
        sys.argv[1:] = [run, name, threads]
        train.main()


if __name__ == "__main__":
    main()
