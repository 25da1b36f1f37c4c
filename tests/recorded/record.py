"""Record the runs of this version: `python -m tests.recorded.record`.

One command, about two minutes, into `tests/recorded/MAJOR.MINOR`, in place of what is there.  It
is run again whenever an event or a digest changes, until the version is tagged; from then on its
recordings are frozen, this command refuses to write them, and each of them replays for good.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from nip_fn import __version__

FOLDER = Path(__file__).parent
NIP_FN = Path(sys.executable).parent / "nip-fn"

DUMMY = (
    "--provider dummy --iterations 2 rl.rollouts_per_iteration=8 ei.rollouts_per_iteration=16"
    " malt.num_responses_per_timestep=2 text_rl.test_scheme=all"
    " dataset_options.max_train_size=8 dataset_options.max_test_size=3"
    " dummy.decision_rate=0.6 dummy.invalid_rate=0.05"
    " agents._default.num_invalid_generation_retries=2"
)
EI = f"{DUMMY} --trainer ei"
REPLACED = f"{EI} ei.reward_threshold=-2.0 text_rl.verifier_guess_replacement_annealing"
THREE = f"{DUMMY} malt.num_responses_per_timestep=3 rl.rollouts_per_iteration=5"
EVERY_PAIR = f"{THREE} malt.pair_selection_method=all"
STANCES = "protocol_common.randomize_prover_stance=true"
PRODUCT = (
    f"{DUMMY} malt.simultaneous_branching=product protocol_common.verifier_first=false {STANCES}"
    " rl.rollouts_per_iteration=2 dataset_options.max_test_size=1"
)

RUNS = {
    "ei-weighted": f"{EI} ei.rollout_selection_method=weighted_sampling"
    " ei.weighting_sample_size_factor=2.0 text_rl.fine_tune_on_all_previous_rollouts=true",
    "ei-true-labels-mnip": f"{REPLACED}=exponential --protocol mnip"
    " text_rl.verifier_guess_replacement_annealing_rate=0.5"
    " text_rl.verifier_guess_replacement_proportion=0.8",
    "malt-interval": f"{THREE} malt.pair_selection_method=interval"
    " malt.interval_threshold_proportion=0.2 malt.min_pair_margin=0.3",
    "malt-best-worst-shared": f"{THREE} malt.pair_selection_method=best_worst"
    " malt.value_backup=leaves agents._default.shared_model_group=both"
    " agents._default.fine_tune_from_scratch=false agents._default.dpo_reference=base",
    "malt-every-pair-filtered": f"{EVERY_PAIR} malt.deduplicate_pairs=true"
    " malt.max_pairs_per_datapoint=5 malt.balance_pairs=decisions malt.min_pair_margin=0.2"
    " protocol_common.verifier_decision_spectrum=likert_scale_7",
    "malt-frozen-prover": f"{THREE} agents.prover.freeze_agent=true rl.rollouts_per_iteration=8"
    " malt.frozen_agents_generate_one_response=true protocol_common.shared_reward=true"
    " malt.pair_selection_method=interval malt.interval_threshold_proportion=0.0",
    "malt-warm-up-penalty": f"{THREE} malt.num_initial_ei_iterations=1 ei.reward_threshold=-0.5"
    " protocol_common.prover_invalid_response_penalty=-2.0 dummy.invalid_rate=0.3",
    "malt-product-mnip": f"{PRODUCT} --protocol mnip mnip_protocol.max_message_rounds=4"
    " agents.prover0.shared_model_group=provers agents.prover1.shared_model_group=provers",
    "debate": f"{DUMMY} --protocol debate debate_protocol.sequential=true"
    " debate_protocol.max_message_rounds=4 debate_protocol.prover0_first=false"
    " debate_protocol.min_message_rounds=2 rl.rollouts_per_iteration=3"
    " dataset_options.max_test_size=12 dummy.decision_rate=0.8"
    " protocol_common.verifier_decision_spectrum=likert_int_scale_11",
    "consultancy": f"{EI} --protocol consultancy protocol_common.force_guess=one",
    "multi-channel": f"{EI} --protocol multi_channel_test ei.rollouts_per_iteration=8",
    "merlin-arthur": f"{DUMMY} --protocol merlin_arthur",
    "adp": f"{THREE} --protocol adp {STANCES}"
    " protocol_common.verifier_decision_spectrum=likert_int_scale_11",
    "solo-verifier": f"{DUMMY} --protocol solo_verifier malt.num_responses_per_timestep=4"
    " malt.pair_selection_method=interval",
    "extended": f"{DUMMY} rl.num_epochs=1 text_rl.test_scheme=first_and_last"
    " rl.rollouts_per_iteration=11 --more-iterations 1",
    "scripted": "--iterations 1 text_rl.test_scheme=all dataset_options.max_test_size=8"
    " rl.rollouts_per_iteration=4"
    " agents._default.model_provider=scripted agents.prover.model_name=honest"
    " agents.verifier.model_name=asks_2",
    "local": "--provider local --iterations 1 rl.rollouts_per_iteration=4 rl.num_epochs=1"
    " dataset_options.max_test_size=4",
}


def record(recipe: str, seed: int) -> bytes:
    """The recording of a run that `nip-fn train` makes of the recipe's words."""
    words, _, more = recipe.partition("--more-iterations ")
    options = [
        part
        for word in (*words.split(), f"seed={seed}")
        for part in (["--set", word] if "=" in word else [word])
    ]
    with tempfile.TemporaryDirectory() as place:

        def train(*options: str) -> None:
            command = [NIP_FN, "train", "--run", "recorded", *options]
            subprocess.run(command, cwd=place, check=True, stdout=sys.stderr)

        train(*options)
        if more:
            train("--resume", "--more-iterations", more)
        return Path(place, "runs/recorded/checkpoint.msgpack").read_bytes()


def main() -> None:
    """Record every run of `RUNS`, in place of what was recorded before."""
    tag = f"v{__version__}"
    tags = ("git", "tag", "--list", tag)
    if subprocess.run(tags, cwd=FOLDER, check=True, capture_output=True, text=True).stdout:
        sys.exit(f"{tag} is tagged: its recordings are frozen")
    recordings = {name: record(recipe, seed) for seed, (name, recipe) in enumerate(RUNS.items())}
    folder = FOLDER / __version__.rpartition(".")[0]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, recording in recordings.items():
        (folder / f"{name}.msgpack").write_bytes(recording)
        print(f"{name} {len(recording):,} bytes")


if __name__ == "__main__":
    main()
