"""Parameters for tests."""

from nip_fn.config.codec import from_dict
from nip_fn.errors import or_raise
from nip_fn.params.run import DEFAULT_AGENT, HyperParameters


def construct_test_params(protocol: str = "nip") -> HyperParameters:
    """Settings that train in a moment, with agents that need no model (`use_dummy_api`).

    Raises `ValueError` for an unknown protocol.
    """
    short = {"max_message_rounds": 3}
    # Read from a table as a user's file is, so that the checks hold for the parameters of tests,
    # too.
    table = {
        "interaction_protocol": protocol,
        "agents": {DEFAULT_AGENT: {"use_dummy_api": True, "num_invalid_generation_retries": 2}},
        "rl": {"num_iterations": 2, "rollouts_per_iteration": 8, "num_epochs": 1},
        "text_rl": {"test_scheme": "all"},
        **{f"{name}_protocol": short for name in ("nip", "debate", "mnip")},
        "dataset_options": {"max_train_size": 8, "max_test_size": 4},
    }
    return or_raise(from_dict(table))
