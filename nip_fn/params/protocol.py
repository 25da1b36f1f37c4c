"""Parameters of protocols: rewards, rules and length."""

from typing import Annotated, Literal

from nip_fn.game.decision import SpectrumName
from nip_fn.game.protocol import ForceGuess
from nip_fn.params.base import Count, Record, Reward, parameter


class CommonProtocolParameters(Record, frozen=True):
    """Rewards and rules that all protocols share."""

    answers: Annotated[
        Literal["given", "written"],
        parameter(
            "given: the data say which solution is judged, and if it is right. written: a prover "
            "that argues for acceptance writes the answer in a first round, and a checker says if "
            "it is right.",
            needs="given answers",
        ),
    ] = "given"
    verifier_first: Annotated[
        bool, parameter("The verifier speaks first (nip, debate, mnip).", needs="first speaker")
    ] = True
    randomize_prover_stance: Annotated[
        bool,
        parameter(
            "Provers argue for a verdict drawn from the hash of the solution instead of always "
            "for acceptance (nip, adp, mnip; the other protocols fix the verdicts).",
            needs="stances",
        ),
    ] = False
    prover_stance: Annotated[
        Literal["accept", "reject", "random"] | None,
        parameter(
            "Verdict that provers argue for (nip, adp, mnip); random draws it from the hash of "
            "the solution. None: acceptance, unless randomize_prover_stance is set.",
            needs="stances",
        ),
    ] = None
    prover_reward: Annotated[
        Reward,
        parameter(
            "Reward of a prover when the verifier decides for its verdict.",
            needs="prover rewards",
            stage="rewards",
        ),
    ] = 1.0
    prover_invalid_response_penalty: Annotated[
        Reward | None,
        parameter(
            "Reward of a prover for an invalid reply, which then ends the game. None: the game "
            "continues, and the reply earns nothing.",
            needs="prover",
        ),
    ] = None
    verifier_reward: Annotated[
        Reward, parameter("Reward of the verifier for a correct decision.", stage="rewards")
    ] = 1.0
    verifier_incorrect_penalty: Annotated[
        Reward, parameter("Reward of the verifier for a wrong decision.", stage="rewards")
    ] = -1.0
    verifier_neither_accept_nor_reject_reward: Annotated[
        Reward | None,
        parameter(
            "Reward of the verifier for an undecided verdict. None: half-way between a correct "
            "and a wrong one.",
            needs="undecided verdicts",
            stage="rewards",
        ),
    ] = None
    verifier_terminated_penalty: Annotated[
        Reward,
        parameter(
            "Reward of the verifier if it makes no decision by its last turn.",
            needs="free verdict",
            stage="rewards",
        ),
    ] = -1.0
    verifier_no_guess_reward: Annotated[
        Reward,
        parameter(
            "Reward of the verifier for each earlier turn without a decision.",
            needs="several turns",
            stage="rewards",
        ),
    ] = 0.0
    shared_reward: Annotated[
        bool,
        parameter("Provers receive the verifier's reward instead of their own.", needs="prover"),
    ] = False
    force_guess: Annotated[
        ForceGuess | None,
        parameter(
            "Replaces the verifier's decision at its first turn that counts: zero rejects, one "
            "accepts, y is always correct. None: the verifier decides."
        ),
    ] = None
    verifier_decision_spectrum: Annotated[
        SpectrumName, parameter("Scale on which the verifier decides.")
    ] = "accept_reject"


class LongProtocolParameters(Record, frozen=True):
    """The length of a dialogue."""

    max_message_rounds: Annotated[
        Count,
        parameter("Maximum number of rounds. The game ends at the verifier's last turn."),
    ] = 8
    min_message_rounds: Annotated[
        Count, parameter("First round (counted from 1) in which a decision counts.")
    ] = 1


class OracleParameters(Record, frozen=True):
    """The budget of a verifier that asks an oracle."""

    max_queries: Annotated[
        Count, parameter("Maximum number of questions to the oracle in a game.")
    ] = 2


class TwoProverParameters(LongProtocolParameters, frozen=True):
    """The length and order of a dialogue with two provers."""

    sequential: Annotated[
        bool, parameter("The provers speak one after the other instead of simultaneously.")
    ] = False
    prover0_first: Annotated[
        bool, parameter("With sequential: prover0 speaks before prover1.", needs="sequential")
    ] = True
    randomize_channel_order: Annotated[
        bool, parameter("The verifier reads the provers' messages in a random order.")
    ] = True
