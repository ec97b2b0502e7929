"""SFT of an adapter on CoTA dialogues with all tools, under a curriculum of difficulties.

    python -m pixelis_jax.main --config=configs/sft.py                     # makes its own data first
    python -m pixelis_jax.main --config=configs/sft.py --config.data.path=DIR     # a folder of `cota score`
    python -m pixelis_jax.main --config=configs/sft.py:uniform             # the same without a curriculum

Every `evaluation_frequency` steps the model answers held-out questions with its tools; accuracy, by difficulty, moves
the mix of the next batches. The adapter is written to WORKDIR/adapter (PEFT layout).
"""

import ml_collections

from configs import common


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """The configuration; `variant` is "", "uniform", "smoke" or one of `common.LARGE`."""
    config = common.base("sft")
    config.total_steps = 240  # optimizer steps
    config.init_from = ""  # adapter to go on from; "": a fresh one, on pixelis-tiny-tools, which knows all five tools

    config.data = ml_collections.ConfigDict()
    config.data.path = ""  # folder of `cota score`; "": num_samples are made, and kept in runs/cota_<num_samples>
    config.data.num_samples = 4900  # CoTA samples to make where path is empty
    config.data.held_out_path = ""  # another such folder; "": a share of the pictures of path
    config.data.held_out_share = 0.15  # of the pictures, the first one of a question
    config.data.sample_types = ("positive", "self_correction")  # what is trained on
    config.data.strict = False  # True: the first bad line stops the job; False: it is counted
    config.data.batch_tokens = 6144  # tokens a step, padding included
    config.data.row_tokens = 768  # a longer dialogue is left out whole, and counted
    config.data.buckets = 4  # lengths that rows are padded to; each compiles
    config.data.answer_weight = 1.0  # loss weight of the tokens between the answer tags
    config.data.workers = 0  # processes that make batches ahead; 0: threads

    config.curriculum = ml_collections.ConfigDict()
    config.curriculum.stages = (
        {"name": "stage1", "mix": {"simple": 1.0, "medium": 0.0, "hard": 0.0}},
        {"name": "stage2", "mix": {"simple": 0.7, "medium": 0.3, "hard": 0.0}},
        {"name": "stage3", "mix": {"simple": 0.4, "medium": 0.4, "hard": 0.2}},
        {"name": "stage4", "mix": {"simple": 0.2, "medium": 0.4, "hard": 0.4}},
        {"name": "stage5", "mix": {"simple": 0.2, "medium": 0.3, "hard": 0.5}},
    )  # may have max_steps, too; (): no curriculum, all samples shuffled
    config.curriculum.evaluation_frequency = 40  # steps between evaluations
    config.curriculum.advancement_interval = 40  # steps between changes of stage; a rollback multiplies it
    config.curriculum.min_performance = 0.6  # accuracy on the stage's mix that advances
    config.curriculum.performance_window = 3  # evaluations that are averaged
    config.curriculum.patience_cycles = 2  # consecutive evaluations that advance, or roll back
    config.curriculum.rollback_threshold = -0.05  # fall of accuracy on the previous stage's mix
    config.curriculum.rollback_cooldown = 80  # steps without a decision after a rollback
    config.curriculum.cooldown_cycles = 3  # evaluations without a decision after a rollback
    config.curriculum.rollback_factor = 2.0  # of the advancement interval
    config.curriculum.early_stopping_evaluations = 0  # without a better accuracy, in the last stage; 0: never

    config.optimizer = common.optimizer(learning_rate=3e-3, schedule="cosine", warmup_steps=20)
    config.optimizer.label_smoothing = 0.0  # share of the target's probability that goes to all tokens
    config.optimizer.average_share = 0.2  # last part of the steps whose mean is a candidate for the final adapter

    del config.eval.scenes, config.eval.kinds, config.eval.modes
    config.eval.samples = 90  # held-out questions of an evaluation, the categories in equal parts
    config.eval.test_samples = 180  # others, for the end
    config.eval.batch = 45  # dialogues at a time
    config.checkpoint.every_steps = 40
    config.log_every_steps = 10
    config.logging = ml_collections.ConfigDict()
    config.logging.rollouts = 2  # dialogues of an evaluation that are kept

    if variant == "uniform":
        config.curriculum.stages = ()
    elif variant == "smoke":
        config.total_steps, config.log_every_steps = 4, 2
        config.data.num_samples = 140
        config.data.batch_tokens, config.data.held_out_share, config.data.buckets = 1536, 0.3, 2
        config.curriculum.evaluation_frequency, config.curriculum.advancement_interval = 2, 2
        config.optimizer.warmup_steps = 1
        config.eval.samples, config.eval.test_samples, config.eval.batch = 6, 6, 6
        config.checkpoint.every_steps = 2
    elif variant in common.LARGE:
        common.large(config, variant)
        config.tools.names = common.TOOLS
        config.total_steps = 2000
        config.data.num_samples = 0
        config.data.batch_tokens, config.data.row_tokens, config.data.workers = 32768, 4096, 8
        config.sampling.context_tokens = 4096
        config.optimizer.learning_rate = 1e-4
        config.optimizer.micro_batches = 2
        config.curriculum.evaluation_frequency, config.curriculum.advancement_interval = 100, 500
        config.curriculum.rollback_cooldown = 1000
        config.eval.samples, config.eval.test_samples, config.eval.batch = 192, 384, 16
    elif variant:
        common.unknown_variant("configs/sft.py", variant, "uniform", *common.LARGE)
    return config
