"""Problems with a data set under given parameters, found before a run starts."""

from collections.abc import Collection, Iterator, Mapping
from typing import get_args

from nip_fn.errors import Problem
from nip_fn.game.datapoint import Split
from nip_fn.game.protocol import Role, has_answers
from nip_fn.params.agent import is_scripted
from nip_fn.params.run import HyperParameters
from nip_fn.protocols.registry import PROTOCOLS, agent_names, protocol_of


def needed_splits(params: HyperParameters) -> tuple[Split, ...]:
    """The splits that a run with these parameters draws from."""
    train: tuple[Split, ...] = ("train",) if params.rl.num_iterations else ()
    tested = params.text_rl.test_scheme != "none"
    return (*train, params.test_dataset_split) if tested else train


def class_problems(
    params: HyperParameters,
    classes: Mapping[Split, tuple[int, int]],
    limited: Collection[Split] = (),
) -> Iterator[Problem]:
    """A problem for each needed split of which all datapoints that are used have the same label.

    Args:
        params: The run's parameters.
        classes: The numbers of datapoints with label 1 and 0 of each split that holds any, within
            the limits on their number.
        limited: The splits of which a limit leaves some out.
    """
    if params.dataset_options.only_label is not None:  # asked for
        return
    for split in dict.fromkeys(needed_splits(params)):
        ones, zeros = classes.get(split, (0, 0))
        if bool(ones) != bool(zeros):
            yield Problem(
                f"all {ones + zeros:,} datapoints in {split!r} have label {int(not zeros)}, so "
                "that a verifier needs no more than to say it"
                if ones + zeros > 1
                else f"the only datapoint in {split!r} has label {ones}",
                "dataset",
                "use more of them: raise dataset_options.max_test_size (--limit of nip-fn eval)"
                if split in limited
                else "`nip-fn data stats` tells what was left out: rows that share a problem_id, a "
                "question or the code of a solution are one problem; give rows that are not about "
                "code views, or a problem_id each",
            )


def label_problems(params: HyperParameters, *, is_labelled: bool) -> Iterator[Problem]:
    """The problem of data that have labels where answers are written, or none where they are not.

    Args:
        params: The run's parameters.
        is_labelled: True if the data say which solution is judged, and if it is right.
    """
    is_written = has_answers(protocol_of(params))
    if is_labelled and is_written:
        yield Problem(
            "its rows come with solutions and labels, but in this game a prover writes the answer",
            "dataset",
            "choose data with a reference or tests and without solutions, or "
            "--set protocol_common.answers=given",
        )
    if not is_labelled and not is_written:
        yield Problem(
            "its rows have no label, and in this game nobody writes an answer that could get one",
            "dataset",
            "--set protocol_common.answers=written, or a protocol such as pvg",
        )


def view_problems(
    params: HyperParameters, views: Collection[tuple[str, ...]], *, solved: bool
) -> Iterator[Problem]:
    """Problems with the roles or agents that datapoints have views of.

    Args:
        params: The run's parameters.
        views: The distinct sets of names that datapoints have views of.
        solved: True if each datapoint has a solution, which prompts of version "v1" are about.
    """
    agents = protocol_of(params).agents
    # Of any protocol: the same data are played under several.
    roles: set[str] = set(get_args(Role))
    names_of_game = roles.union(*map(agent_names, PROTOCOLS))
    for name in sorted({name for names in views for name in names} - names_of_game):
        yield Problem(
            f"it has views of {name!r}, which is no role and no agent",
            "dataset",
            "name views after roles (prover, verifier) or after agents, here "
            f"{' and '.join(agent.name for agent in agents)}",
        )
    version = params.code_validation.system_prompt_version
    for agent, fields in zip(agents, params.agents, strict=True):
        # A template of one's own may show the agent whatever it likes.
        if fields.system_prompt_template is not None or is_scripted(fields):
            continue
        if version != "views" and any(views) and not solved:
            yield Problem(
                f"its datapoints have views and no solutions, about which prompts of version "
                f"{version!r} ask {agent.name!r}",
                "dataset",
                "--set code_validation.system_prompt_version=views, or give the agent a "
                "system_prompt_template_path of your own",
            )
        if version == "views" and not all(
            agent.name in names or agent.role in names for names in views
        ):
            names = " or ".join(map(repr, dict.fromkeys((agent.name, agent.role))))
            has = "not all of its datapoints have" if any(views) else "none of its datapoints has"
            yield Problem(
                f"{has} a view of {names}, which prompts of version 'views' show",
                "dataset",
                f"give each row one (column view.{agent.role}), or choose another "
                "code_validation.system_prompt_version",
            )
