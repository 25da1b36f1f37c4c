"""Parameters of protocols: rewards, rules, length."""

from typing import Annotated

from msgspec import Meta

from nip_fn.game.decision import SpectrumName
from nip_fn.game.protocol import ForceGuess
from nip_fn.params.base import Count, Record


class CommonProtocolParameters(Record, frozen=True):
    """Rewards and rules that all protocols share."""

    verifier_first: Annotated[
        bool, Meta(description="the verifier opens the dialogue (nip, debate, mnip)")
    ] = True
    randomize_prover_stance: Annotated[
        bool,
        Meta(
            description="provers argue for a side that depends on the solution's hash, where the "
            "protocol leaves the side open (nip, adp, mnip)"
        ),
    ] = False
    prover_reward: Annotated[float, Meta(description="for a prover that persuades")] = 1.0
    prover_invalid_response_penalty: Annotated[
        float | None,
        Meta(description="reward for an invalid reply, which ends the game; None: off"),
    ] = None
    verifier_reward: Annotated[float, Meta(description="for the right decision")] = 1.0
    verifier_incorrect_penalty: Annotated[float, Meta(description="for the wrong one")] = -1.0
    verifier_neither_accept_nor_reject_reward: Annotated[
        float | None, Meta(description="for an undecided decision; None: half-way between the two")
    ] = None
    verifier_terminated_penalty: Annotated[
        float, Meta(description="for not deciding in the last turn")
    ] = -1.0
    verifier_no_guess_reward: Annotated[
        float, Meta(description="for each earlier turn without a decision")
    ] = 0.0
    shared_reward: Annotated[bool, Meta(description="provers get the verifier's reward")] = False
    force_guess: Annotated[
        ForceGuess | None,
        Meta(
            description="the verifier decides at its first turn that counts, whatever it says: "
            "zero rejects, one accepts, y is always right; None: it decides for itself"
        ),
    ] = None
    zero_knowledge: Annotated[bool, Meta(description="tensor agents only: leave it false")] = False
    verifier_decision_spectrum: Annotated[
        SpectrumName, Meta(description="the words in which the verifier decides")
    ] = "accept_reject"


class LongProtocolParameters(Record, frozen=True):
    """The length of a dialogue."""

    max_message_rounds: Annotated[
        Count, Meta(description="rounds at most; the game ends at the verifier's last turn")
    ] = 8
    min_message_rounds: Annotated[
        Count, Meta(description="decisions in earlier rounds than this one's end are ignored")
    ] = 1


class TwoProverParameters(LongProtocolParameters, frozen=True):
    """The length and order of a dialogue with two provers."""

    sequential: Annotated[
        bool, Meta(description="the provers speak one after the other, not at once")
    ] = False
    prover0_first: Annotated[
        bool, Meta(description="prover0 is the first of the two, where they speak in turn")
    ] = True
    randomize_channel_order: Annotated[
        bool, Meta(description="the verifier reads the provers' messages in a random order")
    ] = True
