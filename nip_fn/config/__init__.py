"""Configurations: their written form, its translation into records, and its checks.

tables and records    from_dict, to_dict, get
of the nip library    from_nip_config
as values             trainer_of, losses_of, make_groups
by name               TRAINERS, SELECTORS, BACKUPS
"""

from nip_fn.config.codec import from_dict, get, to_dict
from nip_fn.config.compat.nip import from_nip_config
from nip_fn.config.groups import make_groups
from nip_fn.config.trainers import BACKUPS, SELECTORS, TRAINERS, losses_of, trainer_of

__all__ = [
    "BACKUPS",
    "SELECTORS",
    "TRAINERS",
    "from_dict",
    "from_nip_config",
    "get",
    "losses_of",
    "make_groups",
    "to_dict",
    "trainer_of",
]
