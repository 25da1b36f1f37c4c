"""Exit codes: what a command tells the process that has started it."""

from enum import IntEnum


class Exit(IntEnum):
    """The meaning of each exit code; that of a problem has the name of its kind."""

    OK = 0
    BUG = 1  # an error in nip-fn
    USAGE = 2  # a wrong option, parameter, data set or configuration file
    UNTRUSTED = 2  # an alias: a recording names code that nobody here has named
    RUN = 3  # the run exists already, does not exist, or is in use
    CORRUPT = 4  # a checkpoint does not match its checksums
    TRUNCATED = 5  # a checkpoint ends inside an event, or before the first
    FOREIGN = 6  # not a checkpoint
    NEWER = 7  # a checkpoint of a newer version of nip-fn
    MISMATCH = 8  # the replay derives something else than was recorded
    ADAPTER = 9  # a model or a training failed
    SYSTEM = 10  # a file or the operating system refused
    BUDGET = 11  # stopped before it would cost more than the budget; the run can be resumed
    SKIPPED = 12  # the run is done, but went on without a training or an adapter that failed
    INTERRUPTED = 130  # stopped by Ctrl-C; the run can be resumed
