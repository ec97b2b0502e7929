"""GRPO with tools: pixelis-tiny learns to look closer on PixelSearch.

python -m pixelis_jax.main --config=configs/rft.py                 # two CPU cores: minutes
python -m pixelis_jax.main --config=configs/rft.py:smoke           # about a minute, no change of stage
python -m pixelis_jax.main --config=configs/rft.py:pixelis_v2      # rewards combined as in the earlier system
python -m pixelis_jax.main --config=configs/rft.py:pixelis_v2_steps   # and its table of weights by step: 6000 steps
python -m pixelis_jax.main --config=configs/rft.py:qwen2_5_vl_7b --config.model.name=DIR     # one 80 GB card; or _3b
"""

from typing import Any

import ml_collections

from configs import common
from pixelis_jax.rewards import orchestrator

ORIGINAL_STAGES = (
    {
        "name": "Phase1_Learn_Goal",
        "weights": {"final": 1.0, "coherence": 0.0, "curiosity": 0.0},
        "exits": (
            {"kind": "threshold", "metric": "success_rate_ma100", "value": 0.70},
            {"kind": "max_steps", "steps": 10_000},
        ),
    },
    {
        "name": "Phase2_Learn_Coherence",
        "weights": {"final": 1.0, "coherence": 0.1, "curiosity": 0.0},
        "exits": (
            {"kind": "slope", "metric": "coherence_ma100", "value": 0.001, "patience": 5},
            {"kind": "threshold", "metric": "combined_score_ma100", "value": 0.65},
            {"kind": "max_steps", "steps": 20_000},
        ),
        "entry_metric": "success_rate_ma100",
    },
    {
        "name": "Phase3_Learn_Curiosity",
        "weights": {"final": 1.0, "coherence": 0.1, "curiosity": 0.05},
        "entry_metric": "success_rate_ma100",
    },
)
EARLIER = ("pixelis_v2", "pixelis_v2_steps")
V2_STEPS = {  # weights by the step from which they hold
    0: {"final": 1.0, "coherence": 0.0, "curiosity": 0.0},
    1000: {"final": 0.7, "coherence": 0.1, "curiosity": 0.2},
    5000: {"final": 0.5, "coherence": 0.2, "curiosity": 0.3},
}


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """The configuration; `variant` is "", "smoke", one of `EARLIER` or one of `common.LARGE`."""
    config = common.base("rft")
    config.total_steps = 60  # training steps, one rollout and one update each
    config.init_from = "pixelis-tiny-sft"  # adapter to start from: bundled name, PEFT directory or workdir; "": none

    config.data = common.questions(held_out_share=0.1)

    config.rollout = ml_collections.ConfigDict()
    config.rollout.prompts = 8  # prompts a step
    config.rollout.group_size = 8  # samples a prompt
    config.rollout.tools_on = True  # False: every call is answered with an error; what are tools worth?
    config.rollout.length_buckets = 1  # rows are padded to the next of so many parts of context_tokens; each compiles
    config.rollout.dynamic_batches = 0  # further batches a step, for prompts whose samples are all right or all wrong
    config.rollout.replay_ratio = 0.0  # share of a batch that may be replaced by informative rows of earlier steps
    config.rollout.replay_size = 100  # rows that are kept for that
    config.rollout.replay_alpha = 1.0  # drawn with P ~ |advantage|^alpha
    config.rollout.replay_max_age = 20  # steps until a row is too old
    config.rollout.kinds = ("digit", "text")  # question kinds of PixelSearch, drawn evenly

    config.rewards = ml_collections.ConfigDict()
    config.rewards.norm = "none"  # none | group | running
    config.rewards.norm_window = 1000  # rows whose mean and deviation running uses; older ones lose weight
    config.rewards.norm_warmup = 10  # rows before running changes anything
    config.rewards.clip = 10.0  # the total reward of a row is held in +- this
    config.rewards.success_threshold = 0.5  # final reward from which an answer counts as right, 0..1
    config.rewards.function = ""  # package.module:function(prompts, completions, ...) in place of the task's verifier
    config.rewards.majority = ""  # gated | weighted: no answers are used, what most samples of a prompt say is right
    config.rewards.majority_share = 0.5  # of the samples that must agree, else their prompt teaches nothing
    config.rewards.unrepaired_rule = True  # a right answer behind a call that failed, with no good one since, scores 0
    config.rewards.coherence = "standard"  # standard | pixelis_v2 (one more bad pair)
    config.rewards.curiosity = "icm"  # icm | rapr | none
    config.rewards.curiosity_floor = 0.0  # share of the curiosity reward that a wrong answer keeps
    config.rewards.curiosity_eta = 0.5  # icm: reward for each unit of the forward model's squared error
    config.rewards.curiosity_cap = 1.0  # icm: most that one call earns
    config.rewards.dynamics_transitions = 2000  # calls that icm's forward model is trained on before it is frozen
    config.rewards.rapr_target = 0.3  # rapr: H, share of a group's dialogues with a call below which calls are paid
    config.rewards.rapr_operations = 1  # rapr: N, calls of a dialogue that cost nothing
    config.rewards.rapr_alpha = 0.5  # rapr: reward for each unit that the share lies below H
    config.rewards.rapr_beta = 0.05  # rapr: cost of each call beyond N
    config.rewards.overlong_from = 0  # sampled tokens of a row from which it pays for its length;
    config.rewards.overlong_to = 0  # here the price is 1; 0: length is free. Needs algorithm.mask_truncated=False

    config.penalty = ml_collections.ConfigDict()
    config.penalty.base = 0.1  # reward that one misuse of a tool, or a missing answer, costs; 0: none costs anything
    config.penalty.track_on_still = 2.0  # times base: TRACK_OBJECT on a still image
    config.penalty.out_of_image = 0.5  # times base: a call with coordinates outside the image
    config.penalty.max_zoom_in = 3  # calls of a dialogue that cost nothing; each further one costs base
    config.penalty.max_segment_object_at = 10
    config.penalty.max_get_properties = 10
    config.penalty.max_read_text = 15
    config.penalty.max_track_object = 5

    config.algorithm = ml_collections.ConfigDict()
    config.algorithm.loss = "clip"  # clip | cispo | gspo | sapo; they differ little at one update a rollout (ratio 1)
    config.algorithm.aggregation = "dapo"  # dapo | grpo | dr_grpo | bnpo | luspo
    config.algorithm.advantage_scale = "batch"  # batch | group | none
    config.algorithm.e_low = 0.2  # ratio clipped below 1 - e_low; without effect at one update a rollout
    config.algorithm.e_high = 0.28  # ratio clipped above 1 + e_high; likewise
    config.algorithm.delta = 0.0  # the unclipped ratio's bound where the advantage is negative; 0: none
    config.algorithm.cispo_cap = 5.0  # of CISPO's ratio
    config.algorithm.sapo_tau_positive = 1.0  # SAPO's temperature, advantage above 0
    config.algorithm.sapo_tau_negative = 1.05  # and the others
    config.algorithm.updates_per_rollout = 1  # optimizer steps on each rollout
    config.algorithm.filtering_threshold = 0.01  # |advantage| above which a row counts as informative
    config.algorithm.kl_beta = 0.01  # weight of the KL to the starting policy; 0: none
    config.algorithm.kl_estimator = "k3"  # k1 | k2 | k3; k1 in the reward only
    config.algorithm.kl_place = "loss"  # loss | reward
    config.algorithm.kl_target = 0.0  # nat a token that kl_beta is steered to; 0: kl_beta is fixed
    config.algorithm.kl_horizon = 10_000  # rows in which it may change by a fifth
    config.algorithm.entropy_bonus = 0.0  # weight of the mean token entropy
    # Importance weight of trainer against sampler: none | token_truncate | token_mask | sequence_truncate |
    # sequence_mask; auto: none, unless the start-up gate finds that they differ
    config.algorithm.correction = "auto"
    config.algorithm.correction_cap = 3.0
    config.algorithm.mask_truncated = True  # a row cut within a turn is left out; False: it is a wrong answer
    config.algorithm.mask_over_turn = True  # likewise one that ran out of turns or context

    # Thresholds and intervals for the 60 steps of this demo; the original's are ORIGINAL_STAGES, which the variants for
    # real checkpoints take.
    config.curriculum = ml_collections.ConfigDict()
    config.curriculum.windows = (20,)  # further lengths of the moving averages, steps
    config.curriculum.evaluation_frequency = 5  # steps between decisions
    config.curriculum.rollback_threshold = -0.05  # fall of a stage's entry metric that leads back
    config.curriculum.rollback_patience = 2  # evaluations in a row with such a fall
    config.curriculum.rollback_cooldown_steps = 20  # steps without a decision after a rollback
    config.curriculum.rollback_factor = 2.0  # evaluation_frequency is multiplied by it at a rollback
    config.curriculum.stages = (
        {
            "name": "Phase1_Learn_Goal",
            "weights": {"final": 1.0, "coherence": 0.0, "curiosity": 0.0},
            "exits": (
                {"kind": "threshold", "metric": "success_rate_ma20", "value": 0.55},
                {"kind": "max_steps", "steps": 10_000},
            ),
        },
        {
            "name": "Phase2_Learn_Coherence",
            "weights": {"final": 1.0, "coherence": 0.1, "curiosity": 0.0},
            "exits": (
                {"kind": "threshold", "metric": "combined_score_ma20", "value": 0.4},
                {"kind": "max_steps", "steps": 20_000},
            ),
            "min_steps": 10,
            "entry_metric": "success_rate_ma20",
        },
        {
            "name": "Phase3_Learn_Curiosity",
            "weights": {"final": 1.0, "coherence": 0.1, "curiosity": 0.05},
            "entry_metric": "success_rate_ma20",
        },
    )

    config.optimizer = common.optimizer(learning_rate=6e-4, schedule="constant", warmup_steps=5)

    config.logging = ml_collections.ConfigDict()
    config.logging.rollouts = 2  # whole rollouts kept at a logged step
    config.logging.rollouts_every_steps = 10  # steps between logged rollouts

    if variant == "smoke":
        config.total_steps = 3
        config.rollout.prompts, config.rollout.group_size = 2, 4
        config.checkpoint.every_steps = 2
        config.eval.scenes, config.eval.batch = 8, 8
        config.logging.rollouts_every_steps = 1
    elif variant in EARLIER:
        _earlier_system(config)
        if variant == "pixelis_v2_steps":
            config.total_steps = 6000
            config.curriculum.stages = _stages_by_step(V2_STEPS)
    elif variant in common.LARGE:
        common.large(config, variant)
        config.init_from = ""
        config.rollout.length_buckets = 4
        config.optimizer.learning_rate = 2e-5
        config.optimizer.micro_batches = 8
        config.total_steps = 500
        config.curriculum.stages = ORIGINAL_STAGES
        config.curriculum.evaluation_frequency = 100
        config.curriculum.rollback_cooldown_steps = 1000
    elif variant:
        common.unknown_variant("configs/rft.py", variant, *EARLIER, *common.LARGE)
    return config


def _earlier_system(config: ml_collections.ConfigDict) -> None:
    """The numbers of the earlier system, for comparison."""
    config.rollout.group_size = 4
    config.rollout.replay_ratio, config.rollout.replay_size = 0.5, 100
    config.rewards.norm, config.rewards.clip = "running", 10.0
    config.rewards.coherence = "pixelis_v2"
    config.penalty.base = 0.1
    config.curriculum.stages = ({"name": "pixelis_v2", "weights": dict(orchestrator.PIXELIS_V2_WEIGHTS)},)


def _stages_by_step(table: dict[int, dict[str, float]]) -> tuple[dict[str, Any], ...]:
    """Stages that begin at the steps which `table` names, each with its weights."""
    starts = sorted(table)
    stages = [{"name": f"from_step_{start}", "weights": table[start]} for start in starts]
    for stage, start, end in zip(stages, starts, starts[1:], strict=False):
        stage["exits"] = ({"kind": "max_steps", "steps": end - start},)
    return tuple(stages)
