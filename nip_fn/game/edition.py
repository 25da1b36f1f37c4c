"""Editions of the rules: a run keeps the one that it was recorded under.

Edition 3 (nip-fn 0.3) decides the same games otherwise than edition 2 where that one was careless:

    verdicts   one statement of the verifier's own counts (`verdict.find_decision`); before, the
               last line that looked like one (`verdict.find_last_decision`)
    rewards    a sure decision earns its reward exactly; before, up to rounding
    pairs      values closer than rounding errors are equal (`select.pairs.TOLERANCE`)
    EI         only dialogues in which an agent spoke are selected for it; before, any
    prompts    say that half of the solutions are right only of data with balanced classes; before,
               of any
    chats      whose first message is not the supervisor's have a neutral one; before, they had the
               supervisor's whatever `use_supervisor_message` said
    metrics    of sampling weigh games by their probability; before, by the leaves of trees

Each is a value that a script can pass, too; `params.edition` chooses among them.
"""

from typing import Literal

Edition = Literal[2, 3]
