"""The cells of a study, run on this machine or on many."""
