"""Hypothesis draws the same examples in every run; `EXPLORE=1` draws new ones, and more."""

import os

from hypothesis import settings

settings.register_profile("same", deadline=None, max_examples=50, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=200)
settings.load_profile("explore" if os.environ.get("EXPLORE") else "same")
