"""The end of a job: held-out evaluation, summary.json, and what the user reads last."""

import shlex
from collections.abc import Callable
from typing import Any

from pixelis_jax import assembly
from pixelis_jax.cli import python
from pixelis_jax.data.cota_batches import Cursor
from pixelis_jax.evaluation import Evaluator, evaluate_modes
from pixelis_jax.metrics.files import read_jsonl
from pixelis_jax.metrics.writer import TRAJECTORIES
from pixelis_jax.online import Online
from pixelis_jax.runtime import Host, Run
from pixelis_jax.sft import CurriculumSFT
from pixelis_jax.train_step import TrainState
from pixelis_jax.types import UserError

PyTree = Any
_BEFORE = ("tools_on", "forced_zoom", "greedy")
_AFTER = ("tools_on", "tools_off", "forced_direct", "forced_zoom", "greedy")


def write_online_summary(run: Run, job: Online, state: TrainState, host: Host) -> None:
    """Evaluate base, start and result on the same held-out scenes, write it down, and tell the user."""
    lora = state.trainable["lora"]
    job.save_adapter(run, state, "adapter")
    asked = {"base": (("tools_on",), None), "before": (_BEFORE, job.start), "after": (_AFTER, lora)}
    if not job.config.init_from:  # a fresh adapter changes nothing: base and start are one policy
        del asked["base"]
    questions = job.questions.held_out_count * sum(len(modes) for modes, _ in asked.values())
    with run.progress(questions, "evaluation, questions"):
        results = {
            label: evaluate_modes(job.evaluator, modes, adapter, run.say, label=label, progress=counter(run))
            for label, (modes, adapter) in asked.items()
        }
    results = {"base": {"tools_on": results["before"]["tools_on"]}} | results
    content = {name: {mode: r.record() for mode, r in modes.items()} for name, modes in results.items()}
    run.write("final_eval.json", content)
    before, after = results["before"], results["after"]
    summary: dict[str, Any] = {
        "success_base": results["base"]["tools_on"].success,
        "success_before": before["tools_on"].success,
        "success_after": after["tools_on"].success,
        "success_tools_off": after["tools_off"].success,
        "success_forced_direct": after["forced_direct"].success,
        "success_forced_zoom_before": before["forced_zoom"].success,
        "success_forced_zoom_after": after["forced_zoom"].success,
        "success_greedy_before": before["greedy"].success,
        "success_greedy_after": after["greedy"].success,
        "by_task": {
            name: {kind: share for kind, (share, _) in modes["tools_on"].by_kind.items()}
            for name, modes in results.items()
        },
        "rapr_before": before["tools_on"].rapr,
        "rapr_after": after["tools_on"].rapr,
        "valid_calls_after": after["tools_on"].valid_calls,
        "steps": int(state.step),
        "skipped_updates": int(state.skipped),
        "transitions": host["curriculum"]["transitions"],
        "wall_s": round(run.workdir.wall_s(), 1),
        "seed": job.config.seed,
    }
    run.finish(summary)
    run.say(_online_text(run, summary, job.questions.counted))


def _online_text(run: Run, s: dict[str, Any], counted: str) -> str:
    changes = "; ".join(f"step {t['step']}: {t['source']} -> {t['target']} ({t['cause']})" for t in s["transitions"])
    return "\n".join(
        [
            "",
            f"Success on held-out questions ({counted}): {s['success_before']:.2f} -> {s['success_after']:.2f}"
            f" (tools off {s['success_tools_off']:.2f}, forced direct {s['success_forced_direct']:.2f})",
            f"Greedy {s['success_greedy_before']:.2f} -> {s['success_greedy_after']:.2f};"
            f" with ZOOM forced {s['success_forced_zoom_before']:.2f} -> {s['success_forced_zoom_after']:.2f};"
            f" looks closer in {s['rapr_before']:.2f} -> {s['rapr_after']:.2f} of the dialogues",
            f"Curriculum: {changes or 'no change of stage'}",
            f"{s['steps']} steps{_without(s['skipped_updates'])} in {s['wall_s']:.0f} s."
            f" Everything is in {run.path}/ (docs/files.md)",
            f"Next: {python()} -m pixelis_jax.predict --workdir={run.path} {_example(run)}",
            f"      {python()} -m pixelis_jax.export --workdir={run.path} --to=peft --out=my-adapter",
            f"      pip install tensorboard; tensorboard --logdir {run.path}/tensorboard",
        ]
    )


def _without(skipped: int) -> str:
    return f" ({skipped} updates left out)" if skipped else ""


def _example(run: Run) -> str:
    """Arguments of `predict` for the pictures and question of a logged rollout; FILE and ... where there is none."""
    try:
        last = read_jsonl(run.path / TRAJECTORIES)[-1]
        seen = [turn["observation"]["image"] for turn in last["turns"] if turn["observation"]]
        own = min((place for place in seen if place is not None), default=len(last["images"]))  # behind it, the tools'
        if not own:
            raise LookupError("no picture")
        words = [f"--image={shlex.quote(str(run.path / image))}" for image in last["images"][:own]]
        return " ".join([*words, *["--film"] * last["is_video"], f"--question={shlex.quote(str(last['question']))}"])
    except (UserError, LookupError, TypeError):  # the file may have been changed by hand, and all work is done
        return "--image=FILE --question=..."


def write_sft_summary(run: Run, job: CurriculumSFT, state: TrainState, host: Host) -> None:
    """Choose the final adapter on the validation questions, measure all on the test questions, write it down."""
    count = counter(run)
    candidates = job.candidates(run, state, host)
    questions = len(job.validation.numbers) * len(candidates) + len(job.test.numbers) * (len(candidates) + 2)
    with run.progress(questions, "evaluation, questions"):
        validation = {name: job.validation(lora, progress=count) for name, lora in candidates.items()}
        chosen = max(validation, key=lambda name: validation[name].overall)
        test = {
            name: job.test(lora, progress=count) for name, lora in {"start": job.start["lora"], **candidates}.items()
        }
        test["tools_off"] = job.test(candidates[chosen], tools_on=False, progress=count)
    for name, found in test.items():
        kinds = ", ".join(f"{k} {share:.2f}" for k, (share, _) in (found.by_category | found.by_task).items())
        run.say(f"test, {name}: accuracy {found.overall:.3f} ({kinds})")
        if name != "tools_off" and (line := found.unanswered.line()):
            run.say(f"test, {name}: {line}")
    assembly.save_adapter(run.config, job.policy, run.path / "adapter", candidates[chosen])
    summary = {
        "chosen": chosen,
        "validation": {name: found.record() for name, found in validation.items()},
        "test": {name: found.record() for name, found in test.items()},
        "transitions": host["curriculum"]["transitions"],
        "best": host["best"],
        "left_out": Cursor.from_json(host["data"]).left_out | dict(job.corpus.left_out),
        "steps": int(state.step),
        "skipped_updates": int(state.skipped),
        "seed": run.config.seed,
        "wall_s": round(run.workdir.wall_s(), 1),
    }
    run.finish(summary)
    run.say(
        f"the {chosen} adapter is in {run.path / 'adapter'} (PEFT layout); everything is in {run.path}/ (docs/files.md)"
    )


def counter(run: Run) -> Callable[[int], None]:
    """What an evaluation calls after each batch: the progress line moves, and a signal ends the job here."""

    def count(scenes: int) -> None:
        run.show({}, count=scenes)
        run.check()

    return count


def write_offline_summary(run: Run, evaluator: Evaluator, lora: PyTree | None) -> None:
    """Evaluate what a supervised or evaluation job ended with; summary.json, and its lines for the user."""
    settings = run.config.eval
    with run.progress(evaluator.prompts.held_out_count * len(settings.modes), "evaluation, questions"):
        results = evaluate_modes(evaluator, settings.modes, lora, run.say, progress=counter(run))
    content = {mode: result.record() for mode, result in results.items()}
    summary = {
        "eval": content,
        "steps": run.config.total_steps,
        "seed": run.config.seed,
        "wall_s": run.workdir.wall_s(),
    }
    run.finish(summary)
    run.say(f"Everything is in {run.path}/ (docs/files.md)")
