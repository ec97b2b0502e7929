"""Held-out success of a model, with or without an adapter, in every mode.

python -m pixelis_jax.main --config=configs/eval.py --config.init_from=runs/rft
"""

import ml_collections

from configs import common


def get_config(variant: str = "") -> ml_collections.ConfigDict:
    """The configuration; `variant` is "" or "smoke"."""
    config = common.base("eval")
    config.total_steps = 0
    config.init_from = "pixelis-tiny-sft"  # adapter: bundled name, PEFT directory or workdir; "": the model alone
    config.data = common.questions(held_out_share=0.0)
    if variant == "smoke":
        config.eval.scenes, config.eval.batch = 8, 8
    elif variant:
        common.unknown_variant("configs/eval.py", variant)
    return config
