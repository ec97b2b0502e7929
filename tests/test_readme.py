"""The documentation is held to the code: quoted source, file tree, commands, fields, formulas, and its examples run."""

import ast
import json
import math
import re
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open

from docs import make_metrics, make_results
from pixelis_jax import config as configs
from pixelis_jax import tools
from pixelis_jax.algorithms.grpo import GRPOConfig, GRPOInputs, grpo_loss
from pixelis_jax.metrics.names import find
from pixelis_jax.online import Online
from pixelis_jax.tools import TOOLS, Session, execute, grammar, schemas
from pixelis_jax.types import OPS, STATE_DIM, RewardInputs, ToolCall

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pixelis_jax"
MODEL = PACKAGE / "assets" / "pixelis-tiny"
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", MODEL / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
page = pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def example(name: str) -> types.ModuleType:
    """The README's example of the file `name`, as a module."""
    source = next(block for block in blocks("python") if block.startswith(f"# {name}\n"))
    module = types.ModuleType(Path(name).stem)
    exec(compile(source, f"<{name}>", "exec"), module.__dict__)  # no file: coverage looks for none
    return module


def tree() -> dict[str, str]:
    """Path -> description of the README's file tree; indentation makes the folders."""
    found: dict[str, str] = {}
    folders: list[str] = []
    for line in blocks("text")[-1].splitlines():
        name, _, text = line.strip().partition(" ")
        folders = folders[: (len(line) - len(line.lstrip())) // 2]
        found["".join(folders) + name] = text.strip()
        if name.endswith("/"):
            folders.append(name)
    return found


def test_the_two_commands_come_first() -> None:
    first = [line.split()[0] for line in blocks("bash")[0].splitlines()]
    assert first == ["./launch/local.sh", "./launch/test.sh"]
    assert README.index("```bash") < 40


def test_the_loop_is_quoted_as_it_stands() -> None:
    source = (PACKAGE / "train.py").read_text()
    loop = next(n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == "train_online")
    assert blocks("python")[0] == f"{ast.get_source_segment(source, loop)}\n", "quote train_online in README.md anew"


def test_the_tree_names_every_module_once() -> None:
    named = tree()
    files = sorted(str(p.relative_to(ROOT)) for p in PACKAGE.rglob("*.py") if p.name != "__init__.py")
    assert not [f for f in files if f not in named], "name these in the file tree of README.md"
    assert not [name for name in named if not (ROOT / name).exists()]
    assert not [n for n, text in named.items() if not text and n not in FOLDERS]
    assert all((ROOT / f).is_file() for f in named if not f.endswith("/"))


# Folders that their content explains.
FOLDERS = {f"{x}/" for x in ("benchmarks", "configs", "launch", "docs", "pixelis_jax")} | {
    f"pixelis_jax/{x}/"
    for x in "algorithms answers assets cota curriculum data metrics models rewards rollout tools".split()
} | {f"pixelis_jax/data/{x}/" for x in ("importers", "pixelsearch", "scoring", "synthesis")}  # fmt: skip
MADE = {"docs/curve.svg"}  # by a command that the page names


@page
def test_named_paths_exist(path: Path) -> None:
    text = path.read_text()
    top = {p.name for p in ROOT.iterdir()} - {"runs"}
    paths = {p for p in re.findall(r"`(?:\./)?([\w.-]+/[\w./-]*)(?::\w+)?`", text) if p.split("/")[0] in top}
    links = {link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link}
    assert not [p for p in paths if not (ROOT / p).exists() and p not in MADE]
    assert not [p for p in links if not (path.parent / p).exists()]


@page
def test_commands_and_their_fields_exist(path: Path) -> None:
    for command in re.findall(r"python -m ([^`\n]*)", path.read_text()):
        module, *arguments = command.split()
        if module not in ("pytest", "tensorboard"):
            place = ROOT / module.replace(".", "/")
            assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file(), command
        used = [a for a in arguments if a.startswith("--config") and "$" not in a]
        if used:
            configs.from_argv(used)
    for name in re.findall(r"configs/\w+\.py(?::\w+)?", path.read_text()):
        configs.load(name if "common" not in name else "configs/rft.py")


def test_metrics_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert page == make_metrics.markdown(), "run: python -m docs.make_metrics"


def test_formulas_name_real_functions_fields_and_sources() -> None:
    text = (ROOT / "docs" / "algorithms.md").read_text()
    modules = {
        p.stem: p.read_text() for name in ("algorithms", "rewards", "curriculum") for p in (PACKAGE / name).glob("*.py")
    }
    modules |= {name: (PACKAGE / "models" / f"{name}.py").read_text() for name in ("lora", "head")}
    modules["dynamic"] = (PACKAGE / "dynamic.py").read_text()
    rft = configs.flatten(configs.load("configs/rft.py"))
    for module, name in re.findall(r"`(\w+)\.(\w+)`", text):
        known = module in modules and re.search(rf"(def {name}\(|class {name}:)", modules[module])
        assert known or f"{module}.{name}" in rft, f"{module}.{name}"
    sources = set(re.findall(r"arXiv:\d{4}\.\d{5}", text))
    assert sources == set(re.findall(r"arXiv:\d{4}\.\d{5}", "".join(modules.values())))


def test_the_card_counts_what_is_in_the_file() -> None:
    card = (MODEL / "README.md").read_text().replace(" ", "")
    counts = {"visual": 0, "embed_tokens": 0, "": 0}
    with safe_open(MODEL / "model.safetensors", "numpy") as file:
        for key in file.keys():  # noqa: SIM118 (no mapping)
            part = next(part for part in counts if part in key)
            counts[part] += math.prod(file.get_slice(key).get_shape())
    for count in (*counts.values(), sum(counts.values())):
        assert str(count) in card
    text = json.loads((MODEL / "config.json").read_text())["text_config"]
    assert f"vocabulary|{text['vocab_size']}:" in card
    assert f"`rope_theta`is{text['rope_parameters']['rope_theta']:.0f}" in card


def test_the_tool_example_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = example("pixelis_jax/tools/mean_color.py").TOOL
    monkeypatch.setitem(tools.TOOLS, tool.name, tool)
    image = np.zeros((200, 400, 3), np.uint8)
    image[:, 200:] = (250, 100, 0)  # the right half
    session = Session([image], [(56, 112)], fit_crop=lambda height, width: (56, 56))
    text = '<think>Red?</think><tool_call>{"name": "MEAN_COLOR", "arguments": {"bbox_2d": [42, 0, 70, 56]}}</tool_call>'
    call = grammar.parse(text, TOOLS).call
    assert call is not None
    seen = execute(session, call)  # seen pixels 42..70 are 150..250: one half black, one half orange
    assert (seen.text, seen.ok, seen.region) == ("red 125, green 50, blue 0", True, (0.5, 0.5, 0.25, 1.0))
    assert not execute(session, ToolCall("MEAN_COLOR", {"bbox_2d": [500, 0, 600, 9]})).ok
    assert '"name":"MEAN_COLOR"' in schemas(TOOLS)


def test_every_tool_has_an_operation_id() -> None:
    assert set(TOOLS) <= set(OPS[:-1]) and OPS[-1] == "THINK"


def test_the_reward_example_is_vmapped() -> None:
    brevity = example("pixelis_jax/rewards/brevity.py").brevity
    valid = np.array([[False] * 4, [True] + [False] * 3, [True] * 3 + [False]])
    zeros = {name: np.zeros((3, 4), np.int32) for name in ("ops", "call", "target_image", "observation")}
    flags = {name: valid for name in ("valid", "succeeded", "out_of_image", "by_object", "thought_after")}
    rows = {name: np.zeros(3, np.int32) for name in ("is_video", "score", "answered", "excluded", "group")}
    states = {"arguments": np.zeros((3, 4, 4)), "embeddings": np.zeros((3, 5, STATE_DIM))}
    found = jax.vmap(brevity)(RewardInputs(**zeros, **flags, **rows, **states))
    assert np.allclose(found, [0.0, 0.0, -0.2])


def test_the_algorithm_example_is_the_gradient_of_grpo_at_ratio_1() -> None:
    reinforce_loss = example("pixelis_jax/algorithms/reinforce.py").reinforce_loss
    policy = jnp.array([[False, True, True], [False, True, False], [True, True, True]])
    inputs = GRPOInputs(policy, advantages=jnp.array([1.0, -2.0, 9.0]), included=jnp.array([True, True, False]))
    logp = jnp.log(jnp.array([[0.5, 0.5, 0.25], [0.5, 0.5, 0.5], [0.5, 0.5, 0.5]]))
    entropy = jnp.full((3, 3), 0.7)
    (total, weight), stats = reinforce_loss(logp, entropy, inputs)
    # -(1 * (log .5 + log .25) - 2 * log .5) = log 2, over 3 tokens
    assert np.allclose([total, weight], [math.log(2), 3.0])
    assert np.allclose(stats.reduce()["entropy"], 0.7)
    assert all(find(name) for name in stats.means)

    def grpo(x: jax.Array) -> jax.Array:
        return grpo_loss(x, entropy, inputs, GRPOConfig(kl_beta=0.0))[0][0]

    ours = jax.grad(lambda x: reinforce_loss(x, entropy, inputs)[0][0])(logp)
    assert np.allclose(ours, jax.grad(grpo)(logp))


def test_results_come_from_run_files(tmp_path: Path) -> None:
    fields = {name: 0.25 for name in make_results.FIELDS} | {"steps": 4, "wall_s": 12.5, "seed": 7}
    change = {"step": 3, "source": "A", "target": "B", "cause": "threshold"}
    (tmp_path / "summary.json").write_text(json.dumps(fields | {"transitions": [change]}))
    lines = [json.dumps({"step": step, "success_rate": value}) for step, value in ((1, 0.0), (2, 1.0), (3, None))]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    summary, points = make_results.read(tmp_path)
    assert points == [(1, 0.0), (2, 0.5)]
    written = (PACKAGE / "summary.py").read_text()
    assert not [name for name in make_results.FIELDS if f'"{name}"' not in written]
    table = make_results.table([summary])
    assert "| seed 7 |" in table and "| success_after | 0.250 |" in table and "| wall_s | 12.5 |" in table
    assert "| curriculum | step 3: B (threshold) |" in table
    # step 2 of 2 and success .5: the middle of the height, the right end
    assert "595.0,150.0" in make_results.curve([("seed 7", points)])


def test_the_progress_line_shows_what_there_is() -> None:
    """A loss that measures no KL, as in the example, has none to show."""
    scalars = {"success_rate": 0.5, "rapr": 1.0, "reward": 0.5, "curriculum/stage": 0, "entropy": 0.7}
    shown = Online.headline(None, scalars)  # type: ignore[arg-type]
    assert shown == {"success_rate": 0.5, "rapr": 1.0, "reward": 0.5, "stage": 0}


def test_the_snippet_that_shows_a_tool_alone(capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = (block for block in blocks("python") if block.startswith("import numpy"))
    exec(compile(snippet, "<snippet>", "exec"), {})
    assert capsys.readouterr().out.startswith("Image 2")
