import os

from hypothesis import settings

settings.register_profile("local", deadline=None, max_examples=50)
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "local")
