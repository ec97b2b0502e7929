"""Pretrain pixelis-tiny from scratch on oracle demonstrations of PixelSearch.

    python -m pixelis_jax.main --config=configs/pretrain.py            # a GPU: minutes
    python -m pixelis_jax.main --config=configs/pretrain.py:smoke      # a CPU: seconds

The result is a Hugging Face style directory at WORKDIR/model.
"""

import ml_collections


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """The configuration; `variant` is "" or "smoke"."""
    config = ml_collections.ConfigDict()
    config.job = "pretrain"
    config.seed = 0
    config.total_steps = 9000  # optimizer steps

    config.model = ml_collections.ConfigDict()
    config.model.init_from = ""  # a model directory to go on from; empty: fresh weights
    config.model.width = 128  # decoder features; heads are of 32
    config.model.layers = 4  # decoder layers
    config.model.vision_width = 128  # vision tower features
    config.model.vision_depth = 3  # vision layers; every second one attends over the whole image

    config.image = ml_collections.ConfigDict()
    config.image.min_pixels = 56 * 56  # overview area, px
    config.image.max_pixels = 112 * 112  # overview area, px
    config.image.crop_min_pixels = 84 * 84  # area of a tool's image, px
    config.image.crop_max_pixels = 112 * 112  # area of a tool's image, px

    config.data = ml_collections.ConfigDict()
    config.data.scenes = 64  # scenes a batch
    config.data.questions = 6  # rows a scene
    config.data.kinds = ("digit", "digit", "text", "text", "counting", "attribute", "listing")  # drawn evenly, repeats included
    config.data.direct_answer_share = 0.0  # of the rows that need a look
    config.data.close_up_share = 0.25  # of the scenes: one shape, readable at once
    config.data.chart_share = 0.25  # of the other scenes: a chart of characters to read instead
    config.data.box_noise = 0.12  # jitter of the oracle's boxes, share of the box
    config.data.answer_weight = 3.0  # loss weight of the tokens between the answer tags
    config.data.row_tokens = 152  # tokens a row is padded to
    config.data.workers = 15  # processes that make batches ahead; 0: a thread

    config.optimizer = ml_collections.ConfigDict()
    config.optimizer.learning_rate = 1e-3  # peak
    config.optimizer.warmup_steps = 200
    config.optimizer.weight_decay = 0.01
    config.optimizer.clip_norm = 1.0  # global gradient norm
    config.optimizer.beta2 = 0.98
    config.optimizer.micro_batches = 1

    config.sampling = ml_collections.ConfigDict()
    config.sampling.max_new_tokens = 32  # a turn
    config.sampling.context_tokens = 192  # a dialogue
    config.sampling.max_turns = 3

    config.eval = ml_collections.ConfigDict()
    config.eval.scenes = 512  # held-out scenes
    config.eval.batch = 64  # rows at a time
    config.eval.every_steps = 3000

    config.log_every_steps = 50

    if variant == "smoke":
        config.optimizer.warmup_steps = 2
        config.total_steps = 6
        config.data.scenes, config.data.questions, config.data.workers = 4, 4, 0
        config.eval.scenes, config.eval.batch, config.eval.every_steps = 8, 8, 3
        config.log_every_steps = 2
    elif variant:
        raise ValueError(f"configs/pretrain.py has no variant {variant!r}; use 'smoke' or none")
    return config
