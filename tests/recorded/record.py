"""Record the runs of a release: `python -m tests.recorded.record VERSION`.

Run it once, when the version is released.  A folder that is there is never written to: its files
say what the version's format means.  Every run is of the dummy provider and of about a hundred
replies.  (`dummy`, `debate` and `embedded` of 0.1.0 are older and longer; `embedded` is a run of
the embedded model, warmed up by Expert Iteration.)
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from nip_fn import digest
from nip_fn.run.replay import replay, summary
from nip_fn.run.state import RunState
from nip_fn_adapters.recording import store

FOLDER = Path(__file__).parent
NIP_FN = Path(sys.executable).parent / "nip-fn"

SMALL = (
    "--provider dummy --iterations 2 --run recorded rl.rollouts_per_iteration=8"
    " ei.rollouts_per_iteration=16 malt.num_responses_per_timestep=2 text_rl.test_scheme=all"
    " dataset_options.max_train_size=8 dataset_options.max_test_size=3"
    " dummy.decision_rate=0.6 dummy.invalid_rate=0.05"
    " agents._default.num_invalid_generation_retries=2"
)
EI = "--trainer ei"
WEIGHTED = f"{EI} ei.rollout_selection_method=weighted_sampling"
THREE = "malt.num_responses_per_timestep=3"
EVERY_PAIR = f"{THREE} malt.pair_selection_method=all"
STANCES = "protocol_common.randomize_prover_stance=true"
PRODUCT = "malt.simultaneous_branching=product protocol_common.verifier_first=false"
ALL_ROWS = "text_rl.fine_tune_on_all_previous_rollouts=true"
REPLACED = f"{EI} ei.reward_threshold=-2.0 text_rl.verifier_guess_replacement_annealing"

RUNS = {
    "ei-weighted": f"{WEIGHTED} ei.weighting_sample_size_factor=2.0 {ALL_ROWS}",
    "ei-weighted-once": f"{WEIGHTED} ei.weighting_use_replacement=false"
    " ei.weighting_sample_size_factor=0.7",
    "ei-true-labels": f"{REPLACED}=linear text_rl.verifier_guess_replacement_annealing_rate=0.2"
    " text_rl.verifier_guess_replacement_proportion=0.5",
    "ei-true-labels-mnip": f"{REPLACED}=exponential --protocol mnip"
    " text_rl.verifier_guess_replacement_annealing_rate=0.5"
    " text_rl.verifier_guess_replacement_proportion=0.8",
    "malt-interval": f"{THREE} malt.pair_selection_method=interval rl.rollouts_per_iteration=5"
    " malt.interval_threshold_proportion=0.2 malt.min_pair_margin=0.3",
    "malt-best-worst-shared": f"{THREE} malt.pair_selection_method=best_worst"
    " malt.value_backup=leaves agents._default.shared_model_group=both rl.rollouts_per_iteration=5"
    " agents._default.fine_tune_from_scratch=false agents._default.dpo_reference=base",
    "malt-every-pair-filtered": f"{EVERY_PAIR} malt.deduplicate_pairs=true"
    " malt.max_pairs_per_datapoint=5 malt.balance_pairs=decisions malt.min_pair_margin=0.2"
    " rl.rollouts_per_iteration=5"
    " protocol_common.verifier_decision_spectrum=likert_scale_7",
    "malt-balanced-agents": f"{EVERY_PAIR} malt.balance_pairs=agents {STANCES} {ALL_ROWS}"
    " protocol_common.verifier_no_guess_reward=-0.1 rl.rollouts_per_iteration=5",
    "malt-frozen-prover": f"{THREE} agents.prover.freeze_agent=true"
    " malt.frozen_agents_generate_one_response=true protocol_common.shared_reward=true"
    " malt.pair_selection_method=interval malt.interval_threshold_proportion=0.0",
    "malt-product-debate": f"--protocol debate {PRODUCT} {STANCES} rl.rollouts_per_iteration=2"
    " debate_protocol.max_message_rounds=4 dataset_options.max_test_size=1",
    "malt-product-mnip": f"--protocol mnip {PRODUCT} {STANCES} rl.rollouts_per_iteration=2"
    " mnip_protocol.max_message_rounds=4 dataset_options.max_test_size=1"
    " agents.prover0.shared_model_group=provers agents.prover1.shared_model_group=provers",
    "malt-sequential-debate": "--protocol debate debate_protocol.sequential=true"
    " debate_protocol.max_message_rounds=4 debate_protocol.prover0_first=false"
    " debate_protocol.min_message_rounds=2 rl.rollouts_per_iteration=3"
    " dataset_options.max_test_size=1",
    "malt-warm-up-penalty": f"{THREE} malt.num_initial_ei_iterations=1 ei.reward_threshold=-0.5"
    " protocol_common.prover_invalid_response_penalty=-2.0 dummy.invalid_rate=0.3"
    " rl.rollouts_per_iteration=6",
    "forced-guess": f"{EI} protocol_common.force_guess=one protocol_common.prover_reward=0.5"
    " protocol_common.verifier_first=false nip_protocol.max_message_rounds=4",
    "multi-channel": f"{EI} --protocol multi_channel_test ei.rollouts_per_iteration=8",
    "merlin-arthur": "--protocol merlin_arthur malt.simultaneous_branching=product",
    "adp": f"--protocol adp {THREE} {STANCES}"
    " protocol_common.verifier_decision_spectrum=likert_int_scale_11",
    "solo-verifier": "--protocol solo_verifier malt.num_responses_per_timestep=4"
    " malt.pair_selection_method=interval",
    "extended": "rl.num_epochs=1 text_rl.test_scheme=first_and_last rl.rollouts_per_iteration=11"
    " --more-iterations 1",
}


# The metrics of an iteration that are compared, by the last part of their names.
COMPARED = {
    "accuracy", "games", "replies", "nodes", "tokens", "reward", "adapters", "jobs", "rows",
    "pairs", "margin", "chosen", "replaced",
}  # fmt: skip


def facts(state: RunState) -> dict[str, Any]:
    """The part of a replay that `expected.json` holds."""
    return {
        "digest": digest(state),
        "lineage": {group.name: [a.name for a in group.lineage] for group in state.groups},
        "iterations": [
            {name: value for name, value in record.items() if name.split(".")[-1] in COMPARED}
            for record in summary(state)
        ],
    }


def record(name: str, recipe: str, folder: Path, seed: int) -> None:
    """Make a run as its recipe says, the options of `SMALL` first; keep its recording."""
    words = [*SMALL.split(), f"seed={seed}", *recipe.split()]
    more: list[str] = []
    if "--more-iterations" in words:
        at = words.index("--more-iterations")
        more, words = words[at : at + 2], words[:at]
    options: list[str] = []
    for word in words:
        options += ["--set", word] if "=" in word else [word]
    with tempfile.TemporaryDirectory() as place:
        run = [NIP_FN, "train"]
        subprocess.run([*run, *options], cwd=place, check=True, stdout=sys.stderr)
        if more:
            resume = [*run, "--resume", "--run", "recorded", *more]
            subprocess.run(resume, cwd=place, check=True, stdout=sys.stderr)
        recording = Path(place, "runs/recorded/checkpoint.msgpack").read_bytes()
    (folder / f"{name}.msgpack").write_bytes(recording)
    print(f"{name} {len(recording):,} bytes")


def main(version: str) -> None:
    """Record every run of `RUNS`, and the facts that its replay derives."""
    folder = FOLDER / version
    if folder.exists():
        sys.exit(f"{folder} is there: what a version recorded is never recorded again")
    folder.mkdir()
    expected = {}
    for seed, (name, recipe) in enumerate(RUNS.items()):
        record(name, recipe, folder, seed)
        events = store.read(folder / f"{name}.msgpack").unwrap().events
        expected[name] = facts(replay(events).unwrap().state)
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
