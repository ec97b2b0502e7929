r"""Whole GRPO steps of the real job on a checkpoint that can't talk yet: the sampler is told which tokens to choose.

python -m benchmarks.random_checkpoint --shape=qwen2_5_vl_7b --out=/tmp/random_7b
python -m benchmarks.scripted_job --workdir=/tmp/run --config=configs/rft.py:qwen2_5_vl_7b \
    --config.model.name=/tmp/random_7b --config.total_steps=4 --config.tools.names="('ZOOM_IN',)" \
    --config.sampling.context_tokens=896 --config.sampling.max_turns=2

Every row zooms in `--looks` times (default: once) and answers a digit. All else is the job's own: the model's
log-probs, tools, images, rewards, update, checkpoints; only the choice of the token and the final evaluation are left
out. Prints the median seconds of each phase over the steps after the first.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from pixelis_jax import config as configs
from pixelis_jax import evaluation, train
from pixelis_jax.main import set_up_jax
from pixelis_jax.models.processor import Processor
from pixelis_jax.rollout.engine import Engine

LOOK = '<tool_call>{{"name": "ZOOM_IN", "arguments": {{"bbox_2d": [{0}, {0}, {1}, {1}]}}}}</tool_call>'
FILLER = "I need a closer look. "


class ScriptedEngine(Engine):
    """Says `script[turn][row]`; log-probs, cache and timing are the model's own."""

    script: Sequence[np.ndarray] = ()  # i32[rows, max_new_tokens] a turn

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.turn = 0
        prefill, generate = self.prefill, self.generate

        def first(*args: Any, **options: Any) -> Any:
            self.turn = 0
            return prefill(*args, **options)

        def speak(variables: Any, state: Any, keys: Any, active: Any) -> Any:
            said = jnp.asarray(self.script[min(self.turn, len(self.script) - 1)][: active.shape[0]])
            self.turn += 1
            return generate(variables, state, said, active)

        self.prefill: Any = first
        self.generate: Any = speak

    def _choose(self, logp: Any, keys: Any, i: Any) -> Any:
        return keys[:, i]


def script(processor: Processor, rows: int, tokens: int, *, looks: int) -> list[np.ndarray]:
    """Turns of exactly `tokens` tokens in each row: looks, each a little further, then the row's number modulo 10."""

    def padded(after: str) -> list[int]:
        words = 0
        while True:
            ids = [*processor.encode(f"<think>{FILLER * (words + 1)}</think>{after}"), processor.im_end]
            if len(ids) > tokens:
                break
            words += 1
        ids = [*processor.encode(f"<think>{FILLER * words}</think>{after}"), processor.im_end]
        return ids + [0] * (tokens - len(ids))

    turns = [[padded(LOOK.format(10 + look, 90 + look))] * rows for look in range(looks)]
    answers = [padded(f"<answer>{row % 10}</answer>") for row in range(rows)]
    return [np.array(turn, np.int32) for turn in (*turns, answers)]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--looks", type=int, default=1, help="turns with a zoom before the answer")
    args, rest = parser.parse_known_args()
    config, _ = configs.from_argv(rest)
    set_up_jax()
    from pixelis_jax import as_trained, assembly
    from pixelis_jax.models import families, policy, processor

    config = as_trained.resolve(config).config
    directory = policy.resolve(config.model.name)
    overview, crop = assembly.budgets(config)
    reader = processor.load(directory, families.from_json(directory / "config.json"), overview=overview, crop=crop)
    rows = config.rollout.prompts * config.rollout.group_size
    ScriptedEngine.script = script(reader, rows, config.sampling.max_new_tokens, looks=args.looks)
    evaluation.Engine = ScriptedEngine  # type: ignore[misc]
    train.write_online_summary = lambda *_: None
    train.run(config, args.workdir)
    steps = [json.loads(line) for line in (args.workdir / "perf.jsonl").read_text().splitlines()]
    for name in sorted({name for step in steps for name in step if name != "step"}):
        values = [step[name] for step in steps if step.get(name) is not None]
        print(
            f"{name:28} first {values[0]:10.3f}   median of the others {statistics.median(values[1:] or values):10.3f}"
        )


if __name__ == "__main__":
    main()
