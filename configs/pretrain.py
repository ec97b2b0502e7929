"""Pretrain pixelis-tiny from scratch on oracle dialogues, close-ups, and an auxiliary reading loss.

    python -m pixelis_jax.main --config=configs/pretrain.py            # a GPU: minutes
    python -m pixelis_jax.main --config=configs/pretrain.py:tools      # goes on with five tools; a CPU: an hour
    python -m pixelis_jax.main --config=configs/pretrain.py:smoke      # a CPU: seconds

The result is a Hugging Face style directory at WORKDIR/model.
"""

import ml_collections

from configs import common


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """The configuration; `variant` is "", "tools" or "smoke"."""
    config = ml_collections.ConfigDict()
    config.job = "pretrain"
    config.seed = 0
    config.total_steps = 14000  # optimizer steps

    config.model = ml_collections.ConfigDict()
    config.model.init_from = ""  # a model directory to go on from; "": fresh weights
    config.model.freeze_vision = False  # train the decoder alone, without reading
    config.model.new_tokenizer = False  # go on with a tokenizer that is trained as for fresh weights
    config.model.width = 128  # decoder features; heads are of 32
    config.model.layers = 4  # decoder layers
    config.model.vision_width = 128  # vision tower features
    config.model.vision_depth = 3  # vision layers; every second one attends over the whole image

    config.image = common.image()
    config.image.min_pixels, config.image.max_pixels = 56 * 56, 112 * 112
    config.image.crop_min_pixels, config.image.crop_max_pixels = 84 * 84, 112 * 112
    config.tools = common.tools()
    config.tools.names = ("ZOOM_IN",)
    config.mesh = common.mesh()

    config.data = ml_collections.ConfigDict()
    config.data.scenes = 32  # scenes a batch
    config.data.questions = 12  # rows a scene
    config.data.kinds = ("digit", "digit", "text", "text", "counting", "attribute", "listing")  # drawn evenly
    config.data.direct_answer_share = 0.0  # of the rows that need a look: answered without one
    config.data.failed_call_share = 0.0  # of the rows that need no look: a call that fails comes first
    config.data.close_up_share = 0.25  # of the scenes: one shape, readable at once
    config.data.box_noise = 0.12  # jitter of the oracle's boxes, share of the box
    config.data.answer_weight = 3.0  # loss weight of the tokens between the answer tags
    config.data.row_tokens = 152  # tokens a row is padded to
    config.data.workers = 15  # processes that make batches ahead; 0: a thread

    config.cota = ml_collections.ConfigDict()
    config.cota.samples = 14000  # generated CoTA dialogues, in which all five tools are used; 0: none
    config.cota.every = 4  # one step in so many is on these
    config.cota.batch_tokens = 65536  # tokens of such a step, padding included
    config.cota.row_tokens = 768  # a longer dialogue is left out
    config.cota.buckets = 2  # lengths that rows are padded to; each compiles
    config.cota.ocr = True  # READ_TEXT is called

    config.reading = ml_collections.ConfigDict()
    config.reading.charts = 65536  # reading charts in the pool, kept on the device; 0: dialogues alone
    config.reading.first_steps = 4000  # steps of reading alone, before the dialogues
    config.reading.first_batch = 512  # charts a step of reading alone
    config.reading.batch = 128  # charts a dialogue step, for the auxiliary loss
    config.reading.learning_rate = 1e-3  # peak, of reading alone

    config.optimizer = common.optimizer(learning_rate=1e-3, schedule="cosine", warmup_steps=200)
    config.optimizer.weight_decay = 0.01
    config.optimizer.beta2 = 0.98

    config.sampling = common.sampling()
    config.sampling.temperature, config.sampling.max_turns = 1.0, 3
    config.sampling.max_new_tokens, config.sampling.context_tokens = 32, 152
    config.eval = common.evaluation(scenes=512)
    config.checkpoint = common.checkpoint(every_steps=1000)
    config.log_every_steps = 50

    if variant == "smoke":
        config.total_steps, config.log_every_steps = 6, 2
        config.optimizer.warmup_steps = 2
        config.data.scenes, config.data.questions, config.data.workers = 4, 4, 0
        config.cota.samples = 0
        config.reading.charts, config.reading.first_steps = 32, 2
        config.reading.first_batch, config.reading.batch = 8, 4
        config.eval.scenes, config.eval.batch, config.eval.modes = 8, 8, ("tools_on",)
        config.checkpoint.every_steps = 3
    elif variant == "tools":
        config.total_steps, config.log_every_steps = 2200, 25
        config.model.init_from, config.model.new_tokenizer, config.model.freeze_vision = "pixelis-tiny", True, True
        config.optimizer.warmup_steps = 100
        config.data.workers = 2
        config.cota.samples, config.cota.every, config.cota.buckets = 10500, 1, 4
        config.cota.batch_tokens = 10240
        config.sampling.max_new_tokens, config.sampling.context_tokens, config.sampling.max_turns = 64, 768, 10
        config.eval.modes = ("tools_on",)
        config.checkpoint.every_steps = 200
    elif variant:
        common.unknown_variant("configs/pretrain.py", variant, "tools")
    return config
