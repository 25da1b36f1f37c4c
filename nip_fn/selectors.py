"""Selectors: pair rules, filters, and selection of rollouts, which `chain` composes.

from trees to pairs   candidates, Candidates, DecisionPoint, Pair, Selector
pair rules            interval, about, about_mean, best_worst, every; propose makes one of a
                      function of your own (Rule, from a decision point to Ranks); by_agent
filters               margin, dedupe, one_per_node, cap, balance
composition           chain
their quality         reestimated
rollouts to imitate   at_least, weighted, RolloutRule, SelectedRollout
"""

from nip_fn.select.filters import balance, cap, dedupe, margin, one_per_node
from nip_fn.select.pairs import (
    Candidates,
    DecisionPoint,
    Pair,
    Ranks,
    Rule,
    Selector,
    about,
    about_mean,
    best_worst,
    by_agent,
    candidates,
    chain,
    every,
    interval,
    propose,
)
from nip_fn.select.reestimate import reestimated
from nip_fn.select.rollouts import RolloutRule, SelectedRollout, at_least, weighted

__all__ = [
    "Candidates",
    "DecisionPoint",
    "Pair",
    "Ranks",
    "RolloutRule",
    "Rule",
    "SelectedRollout",
    "Selector",
    "about",
    "about_mean",
    "at_least",
    "balance",
    "best_worst",
    "by_agent",
    "candidates",
    "cap",
    "chain",
    "dedupe",
    "every",
    "interval",
    "margin",
    "one_per_node",
    "propose",
    "reestimated",
    "weighted",
]
