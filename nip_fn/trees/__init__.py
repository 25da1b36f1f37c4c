"""Trees of replies: growth, arrays, values and rollouts."""
