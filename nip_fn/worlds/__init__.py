"""Worlds: games in which a weak verifier needs a prover, with exact optima to compare with."""
