"""Selection of preference pairs and of rollouts to imitate."""
