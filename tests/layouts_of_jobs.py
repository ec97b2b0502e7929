"""Run by test_layouts.py on 8 simulated devices: how each job lays its state out, and how `plan` says it does, as JSON.

python layouts_of_jobs.py FOLDER     # FOLDER: of samples by difficulty
"""

import json
import sys

import jax
from resolved import resolved

from pixelis_jax import offline, programs
from pixelis_jax.online import Online
from pixelis_jax.sft import CurriculumSFT

SHAPES = [(8, 1, 1), (1, 1, 8), (2, 2, 2)]


def config_of(job, folder, shape):
    mesh = [f"--config.mesh.{axis}={n}" for axis, n in zip(("data", "fsdp", "tensor"), shape, strict=True)]
    more = {
        "rft": ["rollout.replay_ratio=0.5", "rollout.prompts=8", "algorithm.kl_target=0.1"],
        "sft": [f"data.path={folder}", "model.name=pixelis-tiny", "tools.names=('ZOOM_IN',)", "eval.batch=8"],
        "habit": ["data.scenes=8", "eval.batch=8"],
        "pretrain": ["data.scenes=8", "eval.batch=8", "model.init_from=pixelis-tiny"],
    }[job]
    more += ["curriculum.stages=()"] if job == "sft" else []
    return resolved(f"configs/{job}.py:smoke", *(f"--config.{field}" for field in more), *mesh)


def leaves(tree):
    """Path -> [shape, dtype, how it is split]: axes of size 1 split nothing."""
    out = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path)
        parts = [a // b for a, b in zip(leaf.shape, leaf.sharding.shard_shape(leaf.shape), strict=True)]
        out[name] = [list(leaf.shape), str(leaf.dtype), parts, str(leaf.sharding.spec)]
    return out


def main() -> None:
    jobs = {"rft": Online, "sft": CurriculumSFT, "habit": offline.Offline, "pretrain": offline.Pretrain}
    found = {}
    for job, kind in jobs.items():
        for shape in SHAPES:
            config = config_of(job, sys.argv[1], shape)
            made = kind(config)
            state = made.first_state()
            planned = programs.abstract_state(config, made.policy.mesh) if job in programs.STATES else None
            found[f"{job} {shape}"] = {
                "job": leaves(state),
                "start": leaves(made.start) if job == "rft" else None,
                "plan": None if planned is None else leaves(planned),
            }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
