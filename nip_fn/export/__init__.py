"""Recordings in other formats.

to_arrays      games as NumPy arrays, a row for each round
transcript     one game, as a table that JSON can hold
"""

from nip_fn.export.arrays import to_arrays
from nip_fn.export.transcripts import transcript

__all__ = [
    "to_arrays",
    "transcript",
]
