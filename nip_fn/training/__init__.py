"""Trainers, shared model groups and training jobs.

Trainers are made by functions of `nip_fn` itself: `malt`, `ei`, `sequence`, `accumulate`.  Here are

    of agents        masked, trained_agents, Selection
    rows             Row; preference, imitated
    losses           DPO, IPO, SimPO, SFT, PolicyGradient, Clipped, each a Loss; LOSSES of your
                     own by name; `Scores` is what they read
    advantages       tree_advantage, running_baseline, normalised, each an Advantage
    groups, jobs     Group, Adapter, Job
"""

from nip_fn.training.compose import masked
from nip_fn.training.groups import Adapter, Group
from nip_fn.training.losses import (
    DPO,
    IPO,
    LOSSES,
    SFT,
    Clipped,
    Loss,
    PolicyGradient,
    Scores,
    SimPO,
)
from nip_fn.training.policy_gradient import (
    Advantage,
    normalised,
    running_baseline,
    tree_advantage,
)
from nip_fn.training.rows import Row, imitated, preference
from nip_fn.training.trainer import Selection, trained_agents
from nip_fn.training.tuning import Job

__all__ = [
    "DPO",
    "IPO",
    "LOSSES",
    "SFT",
    "Adapter",
    "Advantage",
    "Clipped",
    "Group",
    "Job",
    "Loss",
    "PolicyGradient",
    "Row",
    "Scores",
    "Selection",
    "SimPO",
    "imitated",
    "masked",
    "normalised",
    "preference",
    "running_baseline",
    "trained_agents",
    "tree_advantage",
]
