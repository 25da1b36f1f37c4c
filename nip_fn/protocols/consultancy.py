"""consultancy: one expert argues for a side that a coin has assigned to it; the judge knows that.

After Khan et al., "Debating with more persuasive LLMs leads to more truthful answers", 2024, and
Kenton et al., "On scalable oversight with weak LLMs judging strong LLMs", 2024: the baseline that a
debate is to beat.
"""

from nip_fn.game.protocol import Protocol
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.build import make_protocol
from nip_fn.protocols.nip import nip


def consultancy(params: HyperParameters) -> Protocol:
    """The protocol under these parameters; its length is that of nip (`nip_protocol`)."""
    game = nip(params)
    # The side is never open to a choice: a consultant that argues for one side in every game would
    # tell the judge nothing by its words, and nip is that game already.
    return make_protocol(
        common=params.protocol_common,
        name="consultancy",
        agents=game.agents,
        schedule=game.schedule,
        max_message_rounds=game.max_message_rounds,
        min_message_rounds=game.min_message_rounds,
        random_sides=True,
    )
