"""Training jobs. The loops are the documentation; each line of them is one named call.

Offline (pretraining, habit):  batch -> train step -> log -> checkpoint.
SFT:  batch of the current mix -> train step -> held-out accuracy -> curriculum -> log -> checkpoint.
Online (RFT):  prompts -> rollout with tools -> verify -> train step -> curriculum -> log -> checkpoint.
"""

from pathlib import Path

from ml_collections import ConfigDict

from pixelis_jax import as_trained, assembly, hosts, limits, offline
from pixelis_jax.online import Online
from pixelis_jax.runtime import Run, Summary, write_rollouts
from pixelis_jax.sft import CurriculumSFT
from pixelis_jax.summary import write_offline_summary, write_online_summary, write_sft_summary
from pixelis_jax.types import UserError


def train_offline(config: ConfigDict, workdir: Path) -> Summary | None:
    """Supervised training on oracle demonstrations: of all weights (`pretrain`) or of an adapter (`habit`)."""
    job = offline.JOBS[config.job](config)
    with Run(config, workdir, hashes=job.hashes) as run:
        run.say(f"{config.job}: {job.origin}")
        run.say_all(assembly.mesh_notes(config, job.policy))
        start, state, _ = run.restore(job.first_state(), {})
        state = job.prepare(run, state) if start == 0 else state
        batches = job.batches(start)
        for step in run.steps(start, config.job):
            batch = next(batches)
            run.phase("data")
            state, metrics = job.train_step(state, batch, step)
            shown = {}
            if step % config.log_every_steps == 0 or step == config.total_steps:
                shown = job.scalars(metrics, step)
                run.phase("update")
                run.log(step, shown, policy_tokens=job.policy_tokens(batch))
            run.checkpoint(step, state, {})
            run.show({name: shown[name] for name in ("loss", "sft/answer_prob") if name in shown})
        if not run.stopped:
            policy, lora = job.keep(run, state)
            prompts = assembly.make_prompts(config, policy)
            write_offline_summary(run, assembly.make_evaluator(config, policy, prompts), lora)
    return run.summary


def train_sft(config: ConfigDict, workdir: Path) -> Summary | None:
    """Supervised training of an adapter on CoTA dialogues; held-out accuracy moves the curriculum of difficulties."""
    job = CurriculumSFT(config)
    with Run(config, workdir, hashes=job.hashes, keep_best=True) as run:
        run.say(f"{config.job}: {job.origin}")
        run.say_all(job.notes())
        start, state, host = run.restore(job.first_state(), job.first_host())
        batches = job.stream(run, host)
        for step in run.steps(job.where(start, host), config.job):
            drawn = next(batches)
            run.phase("data")
            state, metrics, host = job.train_on(state, drawn, host)
            score, scalars = None, job.scalars_of(metrics, drawn, host, step)
            run.phase("update")
            if job.evaluates(step):
                measured = job.measure(run, state, step)
                host, turned = job.decide(run, host, measured, step)
                batches = job.stream(run, host) if turned else batches
                score, scalars = measured["eval/accuracy"], scalars | measured
                run.phase("evaluation")
            if job.logs(step):
                run.log(step, scalars, policy_tokens=job.policy_tokens(drawn.batch))
            run.checkpoint(step, state, host, score=score)
            run.show(job.headline(scalars))
            if job.is_enough(host):
                run.say(f"step {step}: accuracy does not rise any more; stopping early")
                break
        if not run.stopped:
            write_sft_summary(run, job, state, host)
    return run.summary


def train_online(config: ConfigDict, workdir: Path) -> Summary | None:
    """GRPO with tools from a starting adapter; the KL is measured against that adapter."""
    job = Online(config)
    with Run(config, workdir, hashes=job.hashes) as run:
        run.say(f"policy {config.model.name}, starting from {job.origin}; {job.size}")
        run.say_all(job.notes())
        start, state, host = run.restore(job.first_state(), job.first_host())
        prompts = job.prompts(start)
        for step in run.steps(start, "rft"):
            tasks = next(prompts)
            run.phase("data")
            rollout = job.roll_out(tasks, state, step)
            run.phase("rollout")
            batch = job.verify(rollout)
            job.gate(run, state, batch, host)
            run.phase("verify")
            state, metrics, numbers = job.train_step(state, batch, host)
            outcomes = job.outcomes(rollout)
            host, scalars = job.advance(host, metrics, rollout, outcomes, step)
            run.phase("update")
            job.tell(run, host, outcomes, step)
            stage_ended = job.keep_stage_adapter(run, state, host, step)
            if step % config.logging.rollouts_every_steps == 0:
                write_rollouts(run.writer, step, job.records(rollout, numbers))
            run.phase("log")
            run.log(step, scalars, policy_tokens=sum(o.tokens for o in outcomes), perf=job.sampler.pool.seconds())
            run.checkpoint(step, state, host, lasting=stage_ended)
            run.show(job.headline(scalars))
        if not run.stopped:
            write_online_summary(run, job, state, host)
    return run.summary


def evaluate(config: ConfigDict, workdir: Path) -> Summary | None:
    """Held-out success of a model, or of a model with an adapter, in several modes."""
    policy = assembly.load_policy(config)
    adapter, origin = assembly.starting_adapter(config, policy)
    prompts = assembly.make_prompts(config, policy)
    with Run(config, workdir, hashes=assembly.hashes(policy, adapter) | prompts.hashes) as run:
        run.say(f"evaluating {config.model.name} with {origin}")
        run.say_all([*prompts.notes(), *assembly.mesh_notes(config, policy)])
        lora = adapter if config.init_from else None
        write_offline_summary(run, assembly.make_evaluator(config, policy, prompts), lora)
    return run.summary


JOBS = {"pretrain": train_offline, "habit": train_offline, "sft": train_sft, "rft": train_online, "eval": evaluate}


def run(config: ConfigDict, workdir: Path | str) -> Summary | None:
    """Run the job of a config in `workdir`: what `python -m pixelis_jax.main` calls. The same call again resumes.

    Returns the content of `summary.json`; None where a signal ended the job before.
    """
    if config.job not in JOBS:
        raise UserError(f"config.job {config.job!r} is unknown; use one of {', '.join(JOBS)}")
    resolved = as_trained.resolve(config)
    limits.check(resolved.config)
    for line in resolved.notes if hosts.first() else ():
        print(line, flush=True)
    return JOBS[config.job](resolved.config, Path(workdir))
