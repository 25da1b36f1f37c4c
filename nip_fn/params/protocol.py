"""Parameters of protocols: rewards, rules and length."""

from typing import Annotated, Literal

from msgspec import Meta

from nip_fn.game.decision import SpectrumName
from nip_fn.game.protocol import ForceGuess
from nip_fn.params.base import Count, Record, Reward


class CommonProtocolParameters(Record, frozen=True):
    """Rewards and rules that all protocols share."""

    verifier_first: Annotated[
        bool, Meta(description="The verifier speaks first (nip, debate, mnip).")
    ] = True
    randomize_prover_stance: Annotated[
        bool,
        Meta(
            description="Provers argue for a verdict drawn from the hash of the solution instead "
            "of always for acceptance (nip, adp, mnip; the other protocols fix the verdicts)."
        ),
    ] = False
    prover_stance: Annotated[
        Literal["accept", "reject", "random"] | None,
        Meta(
            description="Verdict that provers argue for (nip, adp, mnip); random draws it from the "
            "hash of the solution, as randomize_prover_stance does. None: acceptance, unless that "
            "is set."
        ),
    ] = None
    prover_reward: Annotated[
        Reward, Meta(description="Reward of a prover whose verdict the verifier decides for.")
    ] = 1.0
    prover_invalid_response_penalty: Annotated[
        Reward | None,
        Meta(
            description="Reward of a prover for an invalid reply, which then ends the game. "
            "None: the game continues, without a reward for the reply."
        ),
    ] = None
    verifier_reward: Annotated[
        Reward, Meta(description="Reward of the verifier for a correct decision.")
    ] = 1.0
    verifier_incorrect_penalty: Annotated[
        Reward, Meta(description="Reward of the verifier for a wrong decision.")
    ] = -1.0
    verifier_neither_accept_nor_reject_reward: Annotated[
        Reward | None,
        Meta(
            description="Reward of the verifier for an undecided verdict. "
            "None: half-way between a correct and a wrong one."
        ),
    ] = None
    verifier_terminated_penalty: Annotated[
        Reward, Meta(description="Reward of the verifier if its last turn brings no decision.")
    ] = -1.0
    verifier_no_guess_reward: Annotated[
        Reward,
        Meta(description="Reward of the verifier for each earlier turn without a decision."),
    ] = 0.0
    shared_reward: Annotated[
        bool, Meta(description="Provers receive the verifier's reward instead of their own.")
    ] = False
    force_guess: Annotated[
        ForceGuess | None,
        Meta(
            description="Replaces the verifier's decision at its first turn that counts: zero "
            "rejects, one accepts, y is always correct. None: the verifier decides."
        ),
    ] = None
    zero_knowledge: Annotated[
        bool,
        Meta(description="Must be false: zero-knowledge protocols exist for tensor agents only."),
    ] = False
    verifier_decision_spectrum: Annotated[
        SpectrumName, Meta(description="The scale on which the verifier decides.")
    ] = "accept_reject"


class LongProtocolParameters(Record, frozen=True):
    """The length of a dialogue."""

    max_message_rounds: Annotated[
        Count,
        Meta(description="Largest number of rounds. The game ends at the verifier's last turn."),
    ] = 8
    min_message_rounds: Annotated[
        Count, Meta(description="First round (counted from 1) in which a decision counts.")
    ] = 1


class TwoProverParameters(LongProtocolParameters, frozen=True):
    """The length and order of a dialogue with two provers."""

    sequential: Annotated[
        bool, Meta(description="The provers speak one after the other, not simultaneously.")
    ] = False
    prover0_first: Annotated[
        bool, Meta(description="With sequential: prover0 speaks before prover1.")
    ] = True
    randomize_channel_order: Annotated[
        bool, Meta(description="The verifier reads the provers' messages in a random order.")
    ] = True
