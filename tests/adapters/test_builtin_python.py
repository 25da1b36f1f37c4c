"""`builtin:python`: every label is proven in the sandbox, by all tests of its problem."""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import chain
from os import cpu_count
from pathlib import Path

import pytest

import nip_fn_adapters
from nip_fn.code.bugs import is_subtle
from nip_fn.code.builtin.python import problems_hash, solutions, topics
from nip_fn.code.fingerprint import fingerprint, syntax_tree
from nip_fn.code.programs import Limits, Tally, program, read_checks, tally
from nip_fn.code.solutions import LabelledSolution
from nip_fn_adapters.pool import in_order
from nip_fn_adapters.sandbox import open_sandbox

PROBLEMS = tuple(chain.from_iterable(topics().values()))
LIMITS = Limits(seconds=8.0)
AT_A_TIME = cpu_count() or 1


def test_there_are_enough_problems_of_every_kind() -> None:
    assert len(PROBLEMS) >= 150
    assert len(topics()) >= 9
    assert min(len(topic) for topic in topics().values()) >= 12
    counts = Counter(problem.difficulty for problem in PROBLEMS)
    assert set(counts) == {"introductory", "interview", "competition"}
    assert min(counts.values()) >= 40


def test_every_problem_is_whole() -> None:
    for problem in PROBLEMS:
        tests = read_checks(problem.tests).unwrap()
        assert f"`{tests.function}(" in problem.statement, problem.id
        assert len(problem.statement.split()) >= 25, problem.id
        assert len(set(tests.inputs)) == len(tests.inputs) >= 8, problem.id
        assert len(problem.bug) >= 2, problem.id
        programs = [problem.solution, *(bug.solution for bug in problem.bug)]
        assert len({fingerprint(code) for code in programs}) == len(programs), problem.id
        for code in programs:
            syntax_tree(code)
            for mark in ("#", '"""'):
                assert (mark in code) == (mark in problem.solution), f"{mark} tells {problem.id}"


def test_no_problem_or_solution_is_there_twice() -> None:
    assert len({problem.id for problem in PROBLEMS}) == len(PROBLEMS)
    assert len({problem.statement for problem in PROBLEMS}) == len(PROBLEMS)
    owners = defaultdict(set)
    for one in solutions():
        owners[fingerprint(one.solution)].add(one.problem_id)
    assert [owner for owner in owners.values() if len(owner) > 1] == []


# ------------------------------------------------------------------------------------------ proofs

# The hash under which all labels were proven last.  Whoever changes what it covers runs
# `pytest -m exhaustive tests/adapters/test_builtin_python.py`, which writes it, and commits it.
PROOFS = Path(__file__).with_name("proofs.json")
ROOT = Path(nip_fn_adapters.__file__).parents[2]
LABELS_DEPEND_ON = ("nip_fn/code/programs.py", "adapters/nip_fn_adapters/sandbox/*.py")
SAMPLE = 24  # every so many problems are proven anew each time


def hash_of(patterns: Sequence[str]) -> str:
    """A hash of the problems, and of the syntax trees of modules: comments change nothing."""
    digest = blake2b(problems_hash().encode(), digest_size=16)
    for path in (path for pattern in patterns for path in sorted(ROOT.glob(pattern))):
        digest.update(f"{path.name} {fingerprint(path.read_text('utf-8'))}".encode())
    return digest.hexdigest()


def write_proof(name: str, patterns: Sequence[str]) -> None:
    known = json.loads(PROOFS.read_text("utf-8")) if PROOFS.exists() else {}
    PROOFS.write_text(json.dumps({**known, name: hash_of(patterns)}, indent=2) + "\n", "utf-8")


def test_the_proof_of_the_labels_is_of_the_code_as_it_is() -> None:
    message = "changed since it was proven; run pytest -m exhaustive on this file"
    assert json.loads(PROOFS.read_text("utf-8"))["labels"] == hash_of(LABELS_DEPEND_ON), message


def not_borne_out(labelled: Iterable[LabelledSolution]) -> dict[str, Tally]:
    """The solutions whose tests do not show what their labels say."""
    sandbox = open_sandbox(unsafe=True).unwrap()

    async def run(one: LabelledSolution) -> Tally:
        assert one.tests is not None
        return tally(one.tests, (await sandbox(program(one.solution, one.tests), LIMITS)).unwrap())

    async def prove() -> dict[str, Tally]:
        wrong = {}
        async for one, found in in_order(labelled, run, AT_A_TIME):
            right = found.all_passed if one.label else is_subtle(found)
            if not right:
                wrong[f"{one.problem_id}: {one.origin}"] = found
        return wrong

    return asyncio.run(prove())


def test_labels_of_a_sample_are_proven_by_running_all_tests() -> None:
    sample = {problem.id for problem in PROBLEMS[::SAMPLE]}
    chosen = [one for one in solutions() if one.problem_id.removeprefix("python/") in sample]
    assert len(chosen) >= 3 * len(sample)
    assert not_borne_out(chosen) == {}


@pytest.mark.exhaustive
def test_every_label_is_proven_by_running_all_tests() -> None:
    assert not_borne_out(solutions()) == {}
    write_proof("labels", LABELS_DEPEND_ON)
