"""open_debate and open_consultancy: an expert chooses the answer that it argues for.

After Kenton et al., "On scalable oversight with weak LLMs judging strong LLMs", 2024.  In an open
debate the other debater argues against that answer; an open consultant is heard alone.
"""

from nip_fn.game.protocol import Protocol
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.answers import with_answers
from nip_fn.protocols.build import make_protocol
from nip_fn.protocols.debate import debate
from nip_fn.protocols.nip import nip


def open_debate(params: HyperParameters) -> Protocol:
    """The debate about an answer that its second debater chooses; as long as debate is."""
    return with_answers(debate(params))._replace(name="open_debate")


def open_consultancy(params: HyperParameters) -> Protocol:
    """The consultancy of an expert that chooses its answer; as long as nip is after it."""
    game = nip(params)
    consultancy = make_protocol(
        common=params.protocol_common,
        name="open_consultancy",
        agents=game.agents,
        schedule=game.schedule,
        max_message_rounds=game.max_message_rounds,
        min_message_rounds=game.min_message_rounds,
        fixed_sides=True,  # whoever chooses an answer argues for it
    )
    return with_answers(consultancy)
