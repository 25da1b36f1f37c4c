"""Trainers made of trainers."""

from typing import Any, NamedTuple

from msgspec.structs import replace

from nip_fn.keys import Key
from nip_fn.training.schedules import check_boundaries
from nip_fn.training.trainer import Groups, Rows, S, SampleBatch, Trainer, Update
from nip_fn.trees.grow import Turn


class SequenceState(NamedTuple):
    """The state of a sequence.

    iterations: updates so far.
    states: of the parts, in their order.
    """

    # Counted in the state and not taken from the batch: a sequence inside a sequence begins with
    # its own first iteration, whenever its turn comes.
    iterations: int
    states: tuple[Any, ...]


def sequence(*parts: tuple[Trainer[Any], int | None]) -> Trainer[SequenceState]:
    """Trainers one after the other, each with the iteration at which the next one takes over.

    The numbers are boundaries, as in `optax.join_schedules` and in `schedules.join`: they count
    from the first iteration of the sequence, and not from that of their own part.  None: for ever.
    `sequence((a, 2), (b, 5), (c, None))` is `a` in iterations 0 and 1, `b` in 2 to 4, then `c`.

    Raises:
        ValueError: The boundaries do not ascend.
    """
    check_boundaries(boundary for _, boundary in parts)
    trainers = tuple(trainer for trainer, _ in parts)

    def active(iterations: int) -> int:
        for index, (_, boundary) in enumerate(parts):
            if boundary is None or iterations < boundary:
                return index
        raise ValueError(f"no trainer of the sequence is left for iteration {iterations}")

    def init(groups: Groups) -> SequenceState:
        return SequenceState(0, tuple(trainer.init(groups) for trainer in trainers))

    def branching(state: SequenceState, turns: tuple[Turn, ...]) -> int:
        index = active(state.iterations)
        return trainers[index].branching(state.states[index], turns)

    def update(batch: SampleBatch, state: SequenceState, key: Key) -> Update[SequenceState]:
        index = active(state.iterations)
        inner = trainers[index].update(batch, state.states[index], key)
        states = (*state.states[:index], inner.state, *state.states[index + 1 :])
        return inner._replace(state=SequenceState(state.iterations + 1, states))

    def batch_size(state: SequenceState) -> int | None:
        index = active(state.iterations)
        return trainers[index].batch_size(state.states[index])

    return Trainer(init, branching, update, batch_size)


def masked(trainer: Trainer[S], agents: tuple[int, ...]) -> Trainer[S]:
    """`trainer` for some agents only: the others are treated as frozen and get no rows.

    `masked(trainer, every agent)` is `trainer`.
    """

    def mask(groups: Groups) -> Groups:
        kept = ((group, tuple(a for a in group.agents if a in agents)) for group in groups)
        return tuple(
            replace(group, agents=own, trainable=group.trainable and bool(own))
            for group, own in kept
        )

    def update(batch: SampleBatch, state: S, key: Key) -> Update[S]:
        return trainer.update(replace(batch, groups=mask(batch.groups)), state, key)

    # Branching needs no mask of its own: it looks at the state, which was made from masked groups.
    return trainer._replace(init=lambda groups: trainer.init(mask(groups)), update=update)


class AccumulateState(NamedTuple):
    """The state of `accumulate`.

    inner: of the trainer.
    past: (group, all of its rows so far), the oldest first.
    """

    inner: Any
    # Rows and not trees: they are all that a later training reads, and a small part of what was
    # sampled.
    past: tuple[tuple[str, Rows], ...] = ()


def accumulate(trainer: Trainer[S]) -> Trainer[AccumulateState]:
    """`trainer`, with the rows of all earlier iterations before those of the present one.

    A replay buffer that never forgets.  Only the rows differ: selection and metrics are the
    trainer's own.
    """

    def update(batch: SampleBatch, state: AccumulateState, key: Key) -> Update[AccumulateState]:
        inner = trainer.update(batch, state.inner, key)
        past = dict(state.past)
        # A group without new rows keeps its old ones.
        names = (*past, *(name for name in inner.rows if name not in past))
        rows = {name: (*past.get(name, ()), *inner.rows.get(name, ())) for name in names}
        state = AccumulateState(inner.state, tuple(rows.items()))
        return Update(rows, state, *inner[2:])

    return Trainer(
        init=lambda groups: AccumulateState(trainer.init(groups)),
        branching=lambda state, turns: trainer.branching(state.inner, turns),
        update=update,
        batch_size=lambda state: trainer.batch_size(state.inner),
    )
