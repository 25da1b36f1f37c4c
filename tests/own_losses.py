"""Losses of a user's own, as they stand in a file."""

# Kahneman-Tversky optimisation without its reference point (Ethayarajh et al. 2024).
KTO = """
def KTO(scores):
    xp, weights = scores.xp, scores.weights
    misfits = 1 / (1 + xp.exp(0.1 * xp.sign(weights) * scores.log_ratios()))
    return xp.sum(xp.abs(weights) * misfits) / scores.num_replies
"""
