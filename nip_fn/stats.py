"""Statistics of games: metrics, intervals and tests.

of verdicts      verdicts, accuracy, always_fails, Verdicts
of oversight     judged, completeness, soundness, auroc, brier, calibration, verification_rate,
                 expected_accuracy, message_effect, majority_accuracy,
                 agent_score_difference, Judged
of papers        judge_accuracy_gain, performance_gap_recovered, legibility_tax
of a stage       stage_metrics, Usage
of searches      best_of
of swaps         shapley_values, subsets
intervals        wilson_interval, t_interval, crossed_interval, crossed_share, effective_size,
                 Estimate
comparisons      paired_difference, sign_flip, holm, detectable_difference, Difference
"""

from nip_fn.metrics.evaluation import Verdicts, accuracy, always_fails, verdicts
from nip_fn.metrics.exploits import best_of
from nip_fn.metrics.formulas import effective_size, wilson_interval
from nip_fn.metrics.gaps import (
    judge_accuracy_gain,
    legibility_tax,
    performance_gap_recovered,
)
from nip_fn.metrics.inference import (
    Difference,
    Estimate,
    crossed_interval,
    crossed_share,
    detectable_difference,
    holm,
    paired_difference,
    sign_flip,
    t_interval,
)
from nip_fn.metrics.oversight import (
    Judged,
    agent_score_difference,
    auroc,
    brier,
    calibration,
    completeness,
    expected_accuracy,
    judged,
    majority_accuracy,
    message_effect,
    soundness,
    verification_rate,
)
from nip_fn.metrics.shapley import shapley_values, subsets
from nip_fn.metrics.stage import stage_metrics
from nip_fn.metrics.usage import Usage

__all__ = [
    "Difference",
    "Estimate",
    "Judged",
    "Usage",
    "Verdicts",
    "accuracy",
    "agent_score_difference",
    "always_fails",
    "auroc",
    "best_of",
    "brier",
    "calibration",
    "completeness",
    "crossed_interval",
    "crossed_share",
    "detectable_difference",
    "effective_size",
    "expected_accuracy",
    "holm",
    "judge_accuracy_gain",
    "judged",
    "legibility_tax",
    "majority_accuracy",
    "message_effect",
    "paired_difference",
    "performance_gap_recovered",
    "shapley_values",
    "sign_flip",
    "soundness",
    "stage_metrics",
    "subsets",
    "t_interval",
    "verdicts",
    "verification_rate",
    "wilson_interval",
]
