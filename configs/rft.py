"""GRPO with tools: pixelis-tiny learns to look closer on PixelSearch.

python -m pixelis_jax.main --config=configs/rft.py                 # two CPU cores: minutes
python -m pixelis_jax.main --config=configs/rft.py:smoke           # about a minute, no change of stage
python -m pixelis_jax.main --config=configs/rft.py:qwen2_5_vl_7b --config.model.name=DIR     # one 80 GB card; or _3b
"""

import ml_collections

from configs import common


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """The configuration; `variant` is "", "smoke" or one of `common.LARGE`."""
    config = common.base("rft")
    config.total_steps = 60  # training steps, one rollout and one update each
    config.init_from = "pixelis-tiny-sft"  # adapter to start from: bundled name, PEFT directory or workdir; "": none

    config.rollout = ml_collections.ConfigDict()
    config.rollout.prompts = 8  # prompts a step
    config.rollout.group_size = 8  # samples a prompt
    config.rollout.length_buckets = 1  # rows are padded to the next of so many parts of context_tokens; each compiles
    config.rollout.kinds = ("digit", "text")  # question kinds, drawn evenly

    config.rewards = ml_collections.ConfigDict()
    config.rewards.norm = "none"  # none | group | running
    config.rewards.curiosity = "icm"  # icm | rapr | none

    config.algorithm = ml_collections.ConfigDict()
    config.algorithm.loss = "clip"  # clip | cispo | gspo | sapo; they differ little at one update a rollout (ratio 1)
    config.algorithm.aggregation = "dapo"  # dapo | grpo | dr_grpo | bnpo | luspo
    config.algorithm.advantage_scale = "batch"  # batch | group | none
    config.algorithm.e_low = 0.2  # ratio clipped below 1 - e_low; without effect at one update a rollout
    config.algorithm.e_high = 0.28  # ratio clipped above 1 + e_high; likewise
    config.algorithm.kl_beta = 0.01  # weight of the k3 KL to the starting policy
    config.algorithm.entropy_bonus = 0.0  # weight of the mean token entropy

    config.curriculum = ml_collections.ConfigDict()
    config.curriculum.windows = (20,)  # further lengths of the moving averages, steps
    config.curriculum.evaluation_frequency = 5  # steps between decisions
    config.curriculum.rollback_cooldown_steps = 20  # steps without a decision after a rollback
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
    elif variant in common.LARGE:
        common.large(config, variant)
        config.init_from = ""
        config.rollout.length_buckets = 4
        config.optimizer.learning_rate = 2e-5
        config.optimizer.micro_batches = 4
        config.total_steps = 500
    elif variant:
        common.unknown_variant("configs/rft.py", variant, *common.LARGE)
    return config
