"""Trainers, shared model groups and training jobs.

Trainers are made by functions of `nip_fn` itself: `malt`, `ei`, `sequence`, `accumulate`.  Here are

    of agents        masked, trained_agents, Selection
    rows             PreferenceRow, SupervisedRow
    groups, jobs     Group, Adapter, Job
"""

from nip_fn.training.compose import masked
from nip_fn.training.groups import Adapter, Group
from nip_fn.training.rows import PreferenceRow, SupervisedRow
from nip_fn.training.trainer import Selection, trained_agents
from nip_fn.training.tuning import Job

__all__ = [
    "Adapter",
    "Group",
    "Job",
    "PreferenceRow",
    "Selection",
    "SupervisedRow",
    "masked",
    "trained_agents",
]
