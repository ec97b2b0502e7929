"""pixelis_jax: reinforcement fine-tuning of vision-language models that look closer, in JAX.

`load` and `ask` use what was trained; `config`, `train`, `models` and `rollout` are modules to import.
"""

from typing import Any

__version__ = "0.1.0"


def load(*args: Any, **options: Any) -> Any:
    """What a run or a folder was trained to, ready for `ask`: see `pixelis_jax.asking.load`."""
    from pixelis_jax import asking  # here, since it loads jax, which `--help` and the readers of runs do without

    return asking.load(*args, **options)


def ask(*args: Any, **options: Any) -> Any:
    """The dialogue about a picture, whose `answer` is the answer: see `pixelis_jax.asking.ask`."""
    from pixelis_jax import asking

    return asking.ask(*args, **options)
