"""A tiny code-validation task: does a function of a few steps do what a sentence asks?

A problem is a sentence, `Take x, add 3, then multiply by 2.`; a solution is a Python function with
one line per step.  Half of the solutions are right, the others have one step changed.  Labels are
proven: the sentence and the source of the function are evaluated apart from one another.

Which split a problem belongs to depends on its text alone, so a problem that is held out under one
key is held out under every key.

>>> from nip_fn.keys import key
>>> dataset = make_dataset(key(1), num_train=4, num_validation=2, num_test=2)
>>> sorted(datapoint.label for datapoint in dataset.train)
[0, 0, 1, 1]
>>> all(prove_label(datapoint, INPUTS) == datapoint.label for datapoint in dataset.test)
True
"""

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Literal, get_args

import msgspec

from nip_fn.code.builtin.philox import integers
from nip_fn.game.datapoint import Datapoint, Dataset, Split, make_datapoint
from nip_fn.keys import Key, fold_in

Draw = Callable[[int], int]  # a uniform integer below its argument, another one at each call
Operation = Literal["add", "subtract", "multiply by"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
CONSTANTS = range(2, 10)
NUM_STEPS = 4
INPUTS = tuple(range(-5, 6))  # two suffice to tell two of these functions apart: they are affine

_SYMBOLS: Mapping[str, str] = {"add": "+", "subtract": "-", "multiply by": "*"}
_MEANING = {"add": operator.add, "subtract": operator.sub, "multiply by": operator.mul}
_PYTHON = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
_STEP_IN_WORDS = re.compile(r"(add|subtract|multiply by) (\d+)")
_BUCKETS: tuple[Split, ...] = ("train",) * 6 + ("validation",) * 2 + ("test",) * 2


class Step(msgspec.Struct, frozen=True):
    """One operation on x.

    >>> step = Step("multiply by", 3)
    >>> step.words, step.code
    ('multiply by 3', 'x * 3')
    """

    operation: Operation
    constant: int

    @property
    def words(self) -> str:
        """The step as a specification puts it."""
        return f"{self.operation} {self.constant}"

    @property
    def code(self) -> str:
        """The step as a Python expression."""
        return f"x {_SYMBOLS[self.operation]} {self.constant}"


class Example(msgspec.Struct, frozen=True):
    """The steps that are asked for and those that were coded; at most one differs."""

    specified: tuple[Step, ...]
    coded: tuple[Step, ...]

    @property
    def bug(self) -> int | None:
        """The index of the step that differs, None where the code is right."""
        pairs = zip(self.specified, self.coded, strict=True)
        return next((i for i, (asked, done) in enumerate(pairs) if asked != done), None)


def specification(steps: Sequence[Step]) -> str:
    """The steps as a sentence.

    >>> specification([Step("add", 3), Step("multiply by", 2)])
    'Take x, add 3, then multiply by 2.'
    """
    return f"Take x, {', then '.join(step.words for step in steps)}."


def program(steps: Sequence[Step]) -> str:
    """The steps as the source of a Python function.

    >>> print(program([Step("add", 3), Step("multiply by", 2)]))
    def f(x):
        x = x + 3
        x = x * 2
        return x
    """
    return "\n".join(["def f(x):", *(f"    x = {step.code}" for step in steps), "    return x"])


def problem_id_of(question: str) -> str:
    """The name of a problem: a hash of its specification."""
    return blake2b(question.encode(), digest_size=8).hexdigest()


def split_of(question: str) -> Split:
    """The split that a problem belongs to, whatever the key: six in ten are for training."""
    return _BUCKETS[int(problem_id_of(question), 16) % len(_BUCKETS)]


def evaluate_specification(question: str, x: int) -> int:
    """The number that the sentence asks for at `x`.

    >>> evaluate_specification("Take x, add 3, then multiply by 2.", 1)
    8
    """
    for operation, constant in _STEP_IN_WORDS.findall(question):
        x = _MEANING[operation](x, int(constant))
    return x


def evaluate_solution(solution: str, x: int) -> int:
    """The number that the function returns at `x`, found in its syntax tree: nothing is executed.

    Only assignments, names, integers, `+`, `-`, `*` and a final `return` are understood; anything
    else is a `ValueError`.

    >>> evaluate_solution("def f(x):\\n    x = x + 3\\n    return x * 2", 1)
    8
    """
    # By a walk through the tree and not by `exec`: the core runs no code, and a solution may come
    # from anywhere.
    match ast.parse(solution).body:
        case [ast.FunctionDef(args=ast.arguments(args=[ast.arg(arg=argument)]), body=body)]:
            names = {argument: x}
        case _:
            raise ValueError("not a function of one argument")
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                names[name] = _evaluate(value, names)
            case ast.Return(value=ast.expr() as value):
                return _evaluate(value, names)
            case _:
                raise ValueError(f"line {statement.lineno} is neither assignment nor return")
    raise ValueError("no return")


def _evaluate(node: ast.expr, names: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _PYTHON:
            return int(_PYTHON[type(op)](_evaluate(left, names), _evaluate(right, names)))
    raise ValueError(f"cannot evaluate {ast.unparse(node)!r}")


def prove_label(datapoint: Datapoint, inputs: Sequence[int]) -> int:
    """1 if the solution does what the question asks on all of `inputs`, else 0."""
    question, solution = datapoint.question, datapoint.solution
    return int(
        all(evaluate_specification(question, x) == evaluate_solution(solution, x) for x in inputs)
    )


def draw_steps(draw: Draw, num_steps: int = NUM_STEPS) -> tuple[Step, ...]:
    """The steps of a specification, drawn uniformly."""
    operations = [OPERATIONS[draw(len(OPERATIONS))] for _ in range(num_steps)]
    constants = [CONSTANTS[draw(len(CONSTANTS))] for _ in range(num_steps)]
    return tuple(map(Step, operations, constants))


def mutate(draw: Draw, steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps with one of them changed, in its operation or its constant, to other behaviour."""
    place = draw(len(steps))
    old = steps[place]
    if draw(2):
        others = [Step(o, old.constant) for o in OPERATIONS if o != old.operation]
    else:
        others = [Step(old.operation, c) for c in CONSTANTS if c != old.constant]
    mutant = (*steps[:place], others[draw(len(others))], *steps[place + 1 :])
    # Proven and not assumed: with other operations or constants a changed step could leave the
    # function as it is.
    question, solution = specification(steps), program(mutant)
    if all(evaluate_specification(question, x) == evaluate_solution(solution, x) for x in INPUTS):
        return mutate(draw, steps)
    return mutant


def examples(draw: Draw, split: Split) -> Iterator[Example]:
    """Endless examples on distinct problems of one split; of each two in turn, one is right."""
    seen: set[tuple[Step, ...]] = set()
    right = False
    while True:
        steps = draw_steps(draw)
        if steps in seen or split_of(specification(steps)) != split:
            continue
        # Two by two one right and one wrong, in an order that is drawn: any even number is
        # balanced, and the parity of a place tells nothing.
        right = not right if len(seen) % 2 else bool(draw(2))
        seen.add(steps)
        yield Example(specified=steps, coded=steps if right else mutate(draw, steps))


def datapoint_of(example: Example) -> Datapoint:
    """The datapoint that shows an example to a verifier."""
    question = specification(example.specified)
    label = int(example.bug is None)
    return make_datapoint(problem_id_of(question), question, program(example.coded), label)


def make_dataset(key: Key, *, num_train: int, num_validation: int, num_test: int) -> Dataset:
    """Three splits of distinct problems, half of them solved correctly; `key` is consumed.

    A larger split begins with the datapoints of a smaller one.
    """

    def draw(split: Split, num: int) -> tuple[Datapoint, ...]:
        drawn = islice(examples(integers(fold_in(key, split)), split), num)
        return tuple(datapoint_of(example) for example in drawn)

    return Dataset(
        name="arithmetic",
        train=draw("train", num_train),
        validation=draw("validation", num_validation),
        test=draw("test", num_test),
    )
