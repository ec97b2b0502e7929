"""LoRA SFT on endless oracle dialogues, with a share of answers given without looking: the bad habit.

    python -m pixelis_jax.main --config=configs/habit.py

The default makes the start of the RL demo: `direct_answer_share` teaches the habit of answering without a look, which
RL then has to overcome. The adapter is written to WORKDIR/adapter (PEFT layout).
"""

import ml_collections

from configs import common


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """The configuration; `variant` is "" or "smoke"."""
    config = common.base("habit")
    config.total_steps = 150  # optimizer steps
    config.init_from = ""  # adapter to go on from; "": a fresh one
    config.data = ml_collections.ConfigDict()
    config.data.scenes = 16  # scenes a batch
    config.data.questions = 4  # rows a scene
    config.data.kinds = ("digit", "text", "counting", "attribute")  # drawn evenly
    config.data.direct_answer_share = 0.65  # of the rows that need a look: answered without one
    config.data.failed_call_share = 0.0  # of the rows that need no look: a call that fails comes first
    config.data.close_up_share = 0.0  # of the scenes: one shape, readable at once
    config.data.box_noise = 0.12  # jitter of the oracle's boxes, share of the box
    config.data.answer_weight = 1.0  # loss weight of the tokens between the answer tags
    config.data.row_tokens = 152  # tokens a row is padded to
    config.data.workers = 0  # processes that make batches ahead; 0: a thread
    config.optimizer = common.optimizer(learning_rate=1e-3, schedule="cosine", warmup_steps=10)
    config.log_every_steps = 10
    if variant == "smoke":
        config.total_steps, config.log_every_steps = 4, 2
        config.data.scenes, config.data.questions = 2, 4
        config.optimizer.warmup_steps = 1
        config.eval.scenes, config.eval.batch = 8, 8
        config.eval.modes = ("tools_on",)
        config.checkpoint.every_steps = 2
    elif variant:
        common.unknown_variant("configs/habit.py", variant)
    return config
