"""Groups of fields that several jobs share."""

from typing import NoReturn

import ml_collections

from pixelis_jax.types import UserError

TOOLS = ("ZOOM_IN", "SEGMENT_OBJECT_AT", "GET_PROPERTIES", "READ_TEXT", "TRACK_OBJECT")


def base(job: str) -> ml_collections.ConfigDict:
    """Fields of every job on a loaded model.

    Where a comment says "as trained", the field is open: it becomes what the adapter of `init_from` was trained with,
    else what the model records of itself, else a default (pixelis_jax/as_trained.py). The run says what it took.
    """
    config = ml_collections.ConfigDict()
    config.job = job
    config.seed = 0

    config.model = ml_collections.ConfigDict()
    config.model.name = ""  # bundled model, or a Hugging Face style directory; "": the adapter's, else pixelis-tiny
    config.model.dtype = ""  # float32 | bfloat16; "": as trained
    config.model.quantize = ""  # int8 | nf4: the decoder's frozen weights in fewer bits; none; "": as trained

    config.image = image()

    config.lora = ml_collections.ConfigDict()
    config.lora.rank = 0  # 0: that of init_from, with its rslora; without one 8
    config.lora.alpha = 0.0  # the adapter is scaled by alpha / rank; 0: that of init_from, without one 16
    config.lora.rslora = False  # scaled by alpha / sqrt(rank) instead
    config.lora.dropout = 0.0  # share of an adapter's inputs that sft and habit set to 0; nothing else does
    config.lora.targets = ()  # regular expressions on layer paths; (): those of init_from, else the decoder's seven

    config.tools = tools()

    config.mesh = mesh()
    config.sampling = sampling()

    config.eval = evaluation(scenes=512)
    config.checkpoint = checkpoint(every_steps=20)
    return config


def image() -> ml_collections.ConfigDict:
    """Pixel budgets: how large the model sees an image."""
    group = ml_collections.ConfigDict()
    group.min_pixels = 0  # overview area, px; 0: as trained
    group.max_pixels = 0  # overview area, px; 0: as trained
    group.crop_min_pixels = 0  # area of a tool's image, px; 0: as trained
    group.crop_max_pixels = 0  # area of a tool's image, px; 0: as trained
    # Of boxes in calls: pixels (of the image as seen) | norm1000; "": as trained, else as the model family does.
    group.coordinates = ""
    return group


def tools() -> ml_collections.ConfigDict:
    """Visual operations that the policy may call; the system prompt shows their schemas."""
    group = ml_collections.ConfigDict()
    group.names = ()  # of TOOLS; (): those that the model knows
    group.workers = 4  # calls that run at the same time
    group.time_limit_s = 30.0  # of one call, the last resort against one that hangs: its row gets an error
    return group


def mesh() -> ml_collections.ConfigDict:
    """Devices an axis; the product must be the device count."""
    group = ml_collections.ConfigDict()
    group.data = -1  # -1: what the others leave
    group.fsdp = 1
    group.tensor = 1
    return group


def sampling() -> ml_collections.ConfigDict:
    """Budgets of a dialogue."""
    group = ml_collections.ConfigDict()
    group.temperature = -1.0  # of sampler and trainer alike; -1: as trained
    group.max_new_tokens = 0  # tokens a turn; 0: as trained
    group.context_tokens = 0  # tokens a dialogue, images included; 0: as trained
    group.max_turns = 0  # assistant turns a dialogue; 0: as trained
    return group


def questions(*, held_out_share: float) -> ml_collections.ConfigDict:
    """What is asked."""
    group = ml_collections.ConfigDict()
    group.path = ""  # folder of `cota import` (or generate, score), whose questions are asked; "": PixelSearch
    group.held_out_path = ""  # another such folder; "": a share of the pictures of path
    group.held_out_share = held_out_share  # of the pictures, the first one of a question; eval: 0 asks them all
    return group


def evaluation(*, scenes: int) -> ml_collections.ConfigDict:
    """Held-out evaluation."""
    group = ml_collections.ConfigDict()
    group.scenes = scenes  # held-out questions, of a scene each
    group.batch = 64  # dialogues at a time
    group.kinds = ("digit", "text", "counting", "attribute")  # question kinds of PixelSearch, drawn evenly
    group.modes = ("tools_on", "tools_off", "forced_direct", "forced_zoom", "greedy")  # for habit, pretrain and eval
    return group


def checkpoint(*, every_steps: int) -> ml_collections.ConfigDict:
    """When to save, and what to go on from."""
    group = ml_collections.ConfigDict()
    group.every_steps = every_steps  # steps between checkpoints; the last step is always saved
    group.keep = 2  # newest steps kept; sft keeps its best one too
    group.restore_step = -1  # -1: the last whole step
    return group


def optimizer(*, learning_rate: float, schedule: str, warmup_steps: int) -> ml_collections.ConfigDict:
    """AdamW."""
    group = ml_collections.ConfigDict()
    group.learning_rate = learning_rate  # peak
    group.schedule = schedule  # constant | cosine (to a tenth at total_steps)
    group.warmup_steps = warmup_steps  # linear
    group.weight_decay = 0.0
    group.clip_norm = 1.0  # global gradient norm; 0: not clipped
    group.beta2 = 0.99
    group.micro_batches = 1  # the batch is split into this many parts to save memory; the result does not change
    return group


LARGE = ("qwen2_5_vl_3b", "qwen2_5_vl_7b")  # variants for one 80 GB card


def large(config: ml_collections.ConfigDict, variant: str) -> None:
    """Budgets for a real checkpoint in the directory `--config.model.name`; `plan` knows the shape by its name."""
    config.model.name = variant
    config.model.dtype = "bfloat16"
    config.image.min_pixels = config.image.crop_min_pixels = 56 * 56
    config.image.max_pixels = config.image.crop_max_pixels = 448 * 448  # 256 tokens
    config.lora.rank = 16
    config.lora.alpha = 32.0
    config.tools.names = TOOLS
    # Six looks and an answer. 900 tokens of prompt at most, 256 of the overview, six turns of 256 with a result of 256
    # for its image and 50 for its text each, and the answer's 256: 4784.
    config.sampling.max_turns = 7
    config.sampling.max_new_tokens = 256
    config.sampling.context_tokens = 5120
    config.eval.scenes, config.eval.batch = 64, 16


def unknown_variant(file: str, variant: str, *others: str) -> NoReturn:
    """Refuses a variant that the config does not have; `others` are those besides smoke."""
    raise UserError(f"{file} has no variant {variant!r}; use {', '.join(map(repr, ('smoke', *others)))} or none")
