import io
import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_model
from PIL import Image

import pixelis_jax
from pixelis_jax import asking, export, predict
from pixelis_jax.config import load, to_json
from pixelis_jax.data.images import open_rgb
from pixelis_jax.models import policy
from pixelis_jax.predict import _clean
from pixelis_jax.types import Observation, Task, ToolCall, Trajectory, Turn, UserError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model.write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def set_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Filled where a test would have set the compile cache of this process."""
    called: list[str] = []
    monkeypatch.setattr("pixelis_jax.main.set_up_jax", lambda: called.append("set up"))
    return called


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)).save(tmp_path / "p.png")
    return tmp_path / "p.png"


def run(model: Path, image: Path, *more: str) -> None:
    predict.main([f"--model={model}", f"--image={image}", "--question=which digit?", "--max_new_tokens=4", *more])


def trajectory(*turns: Turn, status: str = "answered") -> Trajectory:
    image = np.zeros((90, 120, 3), np.uint8)
    images = (image, *(t.observation.image for t in turns if t.observation and t.observation.image is not None))
    none = np.zeros(0, np.int32)
    task = Task("t", 0, "k", "which digit?", (image,), "7")
    arrays = {name: none for name in ("tokens", "policy", "positions", "logp", "turn_of", "image_index")}
    return Trajectory(task=task, sample=0, turns=turns, images=images, embeddings=none, status=status, **arrays)


CALL = ToolCall("ZOOM_IN", {"bbox_2d": [10, 20, 40, 50]})
CROP = Observation("Image 2, 56x56, 2.0x", image=np.zeros((31, 33, 3), np.uint8))


def lines(model: Path, *turns: Turn, color: bool = False, status: str = "answered") -> list[str]:
    loaded = policy.load(str(model))
    return list(predict.dialogue(trajectory(*turns, status=status), loaded, color=color))


def test_the_dialogue_is_shown_turn_by_turn(model: Path) -> None:
    turns = (Turn("", "closer", call=CALL, observation=CROP), Turn("", "it is a 7", answer="7"))
    assert lines(model, *turns) == [
        "question: which digit?",
        "turn 1",
        "  thought     closer",
        '  call        ZOOM_IN {"bbox_2d": [10, 20, 40, 50]}',
        "  observation Image 2, 56x56, 2.0x (33x31 px of the original, seen as 84x56 px)",
        "turn 2",
        "  thought     it is a 7",
        "  answer      7",
        "end: answered",
    ]


def test_a_refused_turn_and_control_characters_are_harmless(model: Path) -> None:
    shown = lines(model, Turn("\x1b[2Jhi\nyou", error="the turn is cut"), status="truncated")
    assert shown[2:] == [
        "  refused     the turn is cut: �[2Jhi you",
        "end: no answer: the last turn was cut at --max_new_tokens",
    ]


def test_color_only_where_asked(model: Path) -> None:
    turn = Turn("", "a", answer="7")
    assert "\x1b" not in "".join(lines(model, turn))
    assert "\x1b[1;32m  answer      7\x1b[0m" in lines(model, turn, color=True)


def test_a_whole_dialogue_of_a_base_a_workdir_and_an_export(model: Path, picture: Path, tmp_path: Path, capsys) -> None:
    workdir = small_model.write_workdir(tmp_path / "rft", model, steps=(1, 2))
    export.main([f"--workdir={workdir}", "--to=peft", f"--out={tmp_path / 'a'}"])
    capsys.readouterr()
    shown = []
    for flags in ([], [f"--workdir={workdir}"], [f"--adapter={tmp_path / 'a'}"], [f"--workdir={workdir}", "--step=1"]):
        predict.main(
            [f"--image={picture}", "--question=which digit?", *(flags or [f"--model={model}", "--max_new_tokens=6"])]
        )
        shown.append(capsys.readouterr().out.splitlines())
    assert shown[0][0] == f"model {model}"
    assert shown[1][0] == f"model {model} with the adapter of step 2 of rft"
    assert shown[3][0] == f"model {model} with the adapter of step 1 of rft"
    assert all(s[1] == "image 1: p.png, 120x90 px, seen as 112x84 px" for s in shown)
    assert shown[1][1:] == shown[2][1:]  # the exported adapter says what the checkpoint says
    assert shown[0][1:] != shown[1][1:] and shown[0][-1].startswith("end: ")


def test_what_was_compiled_is_kept(model: Path, picture: Path, set_up: list[str]) -> None:
    run(model, picture)
    assert set_up == ["set up"]


class Asked(Exception):
    """Stands in for a rollout; holds what it would have been."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch):
    """`asked(*flags)`: (policy, RolloutConfig) of the rollout that these flags ask for."""

    def caught(policy_, config, *, tools):
        raise Asked(policy_, config)

    monkeypatch.setattr(asking, "Sampler", caught)

    def ask(*flags: str):
        with pytest.raises(Asked) as found:
            predict.main([*flags, "--question=which digit?"])
        return found.value.args

    return ask


def test_turns_and_budgets_are_those_of_the_training(asked, model: Path, picture: Path, tmp_path: Path) -> None:
    workdir = small_model.write_workdir(tmp_path / "rft", model, steps=(2,))
    policy_, config = asked(f"--image={picture}", f"--workdir={workdir}")
    assert (config.max_turns, config.sampling.max_new_tokens, config.sampling.context_tokens) == (2, 6, 512)
    assert policy_.processor.crop.min_pixels == 1568
    assert asked(f"--image={picture}", f"--workdir={workdir}", "--max_turns=7")[1].max_turns == 7
    policy_, config = asked(f"--image={picture}", f"--model={model}")
    assert config.max_turns == 4 and policy_.processor.crop.min_pixels == 3136


def test_the_bundled_model_sees_crops_as_in_training(asked, picture: Path, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "pretrain.py").write_text("raise AssertionError('executed')\n")
    monkeypatch.chdir(tmp_path)
    adapter = policy.BUNDLED["pixelis-tiny"].with_name("pixelis-tiny-sft")
    for flags in ([], [f"--adapter={adapter}"]):
        policy_, config = asked(f"--image={picture}", *flags)
        assert (policy_.processor.crop.min_pixels, policy_.processor.overview.min_pixels) == (7056, 3136)
        assert (config.max_turns, config.sampling.context_tokens) == (3, 152)


def test_a_model_of_pretraining_sees_crops_as_in_training(asked, picture: Path, tmp_path: Path) -> None:
    model = small_model.write_model(tmp_path / "model", settings=to_json(load("configs/pretrain.py")))
    policy_, config = asked(f"--image={picture}", f"--model={model}", "--context_tokens=512")
    assert policy_.processor.crop.min_pixels == 7056 and config.max_turns == 3


def test_the_seed_makes_the_sample(model: Path, picture: Path, capsys) -> None:
    shown = []
    for seed in (1, 1, 2):
        run(model, picture, "--temperature=1", f"--seed={seed}")
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] != shown[2]


def test_images_are_saved(model: Path, picture: Path, tmp_path: Path) -> None:
    run(model, picture, f"--save_images={tmp_path / 'seen'}")
    saved = np.asarray(Image.open(tmp_path / "seen" / "image_1.png"))
    np.testing.assert_array_equal(saved, np.asarray(Image.open(picture)))


@pytest.mark.parametrize(("place", "words"), [("/proc/none", "/proc/none: .*; name another folder"), ("", "is a file")])
def test_a_folder_that_cannot_be_is_refused_before_the_model_runs(
    model: Path, picture: Path, place: str, words: str, monkeypatch
) -> None:
    monkeypatch.setattr(asking, "load", None)
    with pytest.raises(UserError, match=words):
        run(model, picture, f"--save_images={place or picture}")


def solid(directory: Path, width: int, height: int) -> Path:
    path = directory / f"{width}x{height}.png"
    Image.new("RGB", (width, height), "red").save(path)
    return path


def test_very_small_and_extreme_pictures(model: Path, tmp_path: Path, capsys) -> None:
    run(model, solid(tmp_path, 1, 1))
    out, err = capsys.readouterr()
    assert "1x1.png has only 1x1 px; it is enlarged to 56x56" in err and err.count("\n") == 1
    assert "image 1: 1x1.png, 1x1 px, seen as 56x56 px" in out
    with pytest.raises(UserError, match=r"201x1\.png: image of 201x1 px: aspect ratio above 200"):
        run(model, solid(tmp_path, 201, 1))
    with pytest.raises(UserError, match="raise --context_tokens"):
        run(model, solid(tmp_path, 56, 56), "--context_tokens=20")


@pytest.mark.parametrize(
    ("mode", "size", "name", "seen"),
    [
        ("L", (60, 40), "a.png", (56, 84)),
        ("P", (60, 40), "a.gif", (56, 84)),
        ("CMYK", (60, 40), "a.jpg", (56, 84)),
        ("RGBA", (60, 40), "a.png", (56, 84)),
        ("I;16", (60, 40), "a.png", (56, 84)),
        ("RGB", (60, 40), "turned.jpg", (84, 56)),
        ("RGB", (28, 28), "a.png", (56, 56)),
        ("RGB", (20000, 100), "a.png", (28, 1568)),  # above the budget, as in the reference: no side is below a block
        ("RGB", (1, 199), "a.png", (812, 28)),
    ],
)
def test_a_picture_of_any_kind_is_asked_about(asked, model: Path, tmp_path: Path, mode, size, name, seen) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6 if name == "turned.jpg" else 1
    Image.new(mode, size).save(tmp_path / name, exif=exif)
    policy_, _ = asked(f"--image={tmp_path / name}", f"--model={model}", "--context_tokens=512")
    assert policy_.processor.fit_overview(*open_rgb(tmp_path / name).shape[:2]) == seen


@pytest.mark.parametrize(
    ("mode", "size", "words"),
    [
        ("L", (1, 20000), "image of 1x20000 px: aspect ratio above 200; crop it first"),
        ("L", (20000, 20), "image of 20000x20 px: aspect ratio above 200; crop it first"),
        ("L", (300, 1), "image of 300x1 px: aspect ratio above 200; crop it first"),
        ("1", (20000, 4000), "20000x4000 px is more than 67108864 pixels; scale it down first"),
        ("1", (20000, 20000), "has more than 67108864 pixels; scale it down first"),
        ("F", (60, 40), "32 bits a pixel (mode F) can't be shown as they are; save it with 8 or 16 bits"),
    ],
)
def test_a_picture_that_cannot_be_seen_is_one_line(model: Path, tmp_path: Path, mode, size, words) -> None:
    picture = tmp_path / "a.tif"
    Image.new(mode, size).save(picture, compression="tiff_lzw")
    with pytest.raises(UserError) as caught:
        run(model, picture)
    assert str(caught.value) == f"{picture}: {words}"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--question= "], "the question is empty"),
        (["--question=a <|image_pad|> b"], "control token <|image_pad|>"),
        (["--adapter=nowhere"], "nowhere is no folder"),
        (["--model=nowhere"], "not a bundled model"),
        (["--step=4"], "--step=4 is a checkpoint of a --workdir"),
        *(([f"--temperature={t}"], f"--temperature is {t}; use 0") for t in ("-1.0", "nan", "1e-300", "1e+300")),
    ],
)
def test_bad_input_is_one_line(model: Path, picture: Path, flags: list[str], words: str) -> None:
    with pytest.raises(UserError) as caught:
        run(model, picture, *flags)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "flag",
    [
        "--seed=-1",
        "--max_turns=0",
        "--context_tokens=100000000000",
        "--max_new_tokens=1048577",
        "--seed=x",
    ],
)
def test_bad_numbers_end_with_2(model: Path, picture: Path, flag: str, capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        run(model, picture, flag)
    assert caught.value.code == 2 and flag.partition("=")[0] in capsys.readouterr().err


def test_the_command_by_hand(model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.png").touch()
    command = [sys.executable, "-m", "pixelis_jax.predict", f"--image={tmp_path / 'empty.png'}", "--question=q"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == f"pixelis_jax.predict: {tmp_path / 'empty.png'}: the file is empty; copy it again\n"


def test_help_loads_no_jax() -> None:
    program = (
        "import sys; from pixelis_jax import predict\n"
        "try: predict.main(['--help'])\n"
        "finally: assert 'jax' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("flags", "words"), [(("--model=", "--image=x.png"), "--model is empty"), (("--image=",), "--image is empty")]
)
def test_an_empty_flag_is_no_default(flags: tuple[str, ...], words: str) -> None:
    """As `--model=$UNSET` gives it."""
    with pytest.raises(UserError, match=words):
        predict.main([*flags, "--question=which digit?"])


def test_a_picture_that_is_not_there_is_one_line(model: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.png: there is no such file") as caught:
        run(model, Path("nowhere.png"))
    assert "\n" not in str(caught.value)


def test_a_question_about_several_pictures(model: Path, picture: Path, capsys) -> None:
    """Each is shown with its number; as the frames of a film the tools get them as one."""
    predict.main(
        [f"--model={model}", f"--image={picture}", f"--image={picture}", "--question=which?", "--max_new_tokens=4"]
    )
    shown = capsys.readouterr().out.splitlines()
    assert [line for line in shown if line.startswith("image ")] == [
        f"image {n}: {picture.name}, 120x90 px, seen as 112x84 px" for n in (1, 2)
    ]
    alone = ["--question=which?", "--context_tokens=40"]
    with pytest.raises(UserError, match=r"2 pictures and question take \d+ tokens \(24 of them the pictures\)"):
        predict.main([f"--model={model}", f"--image={picture}", f"--image={picture}", *alone])


def test_a_film_is_asked_about_as_one(model: Path, picture: Path, monkeypatch, capsys) -> None:
    tasks = []

    def catch(self, asked, **options):
        tasks.extend(asked)
        raise Asked

    monkeypatch.setattr(asking.Sampler, "__call__", catch)
    for flags in (["--film"], []):
        with pytest.raises(Asked):
            run(model, picture, f"--image={picture}", *flags)
    assert [(len(task.images), task.is_video) for task in tasks] == [(2, True), (2, False)]
    assert "one frame" not in capsys.readouterr().err
    with pytest.raises(Asked):
        run(model, picture, "--film")
    assert "note: a film of one frame; give --image once a frame" in capsys.readouterr().err


def test_every_question_is_answered(model: Path, picture: Path, capsys, monkeypatch) -> None:
    """Of two --question the first was once left out in silence. The last ones come from standard input."""
    typed = io.StringIO("and the third?\n<|image_pad|>\nthe fourth?\n\nnever asked\n")
    monkeypatch.setattr(sys, "stdin", typed)
    run(model, picture, "--question=the second?", "--interactive")
    out, err = capsys.readouterr()
    asked = [line.removeprefix("question: ") for line in out.splitlines() if line.startswith("question: ")]
    assert asked == ["which digit?", "the second?", "and the third?", "the fourth?"]
    assert out.count("end: ") == 4 and out.count("image 1: ") == 1
    assert "note: the question contains the control token <|image_pad|>" in err
    with pytest.raises(UserError, match="the question is empty"):
        run(model, picture, "--question= ")
    assert capsys.readouterr().out == ""  # refused before the first was answered
    with pytest.raises(UserError, match=r"there is no question; give --question"):
        predict.main([f"--model={model}", f"--image={picture}"])


def test_it_is_loaded_as_the_run_was_and_an_override_is_said(
    model: Path, picture: Path, tmp_path: Path, capsys
) -> None:
    workdir = small_model.write_workdir(tmp_path / "rft", model, steps=(2,))
    run_json = json.loads((workdir / "run.json").read_text())
    run_json["config"]["model"] |= {"dtype": "bfloat16", "quantize": "int8"}
    (workdir / "run.json").write_text(json.dumps(run_json))
    ready = asking.load(workdir)
    assert ready.policy.model.dtype == jnp.bfloat16 and ready.notes == ()
    kinds = {
        type(leaf).__name__ for leaf in jax.tree.leaves(ready.policy.params, is_leaf=lambda x: hasattr(x, "qtype"))
    }
    assert len(kinds) > 1  # some kernels are in fewer bits
    other = asking.load(workdir, quantize="none", max_turns=5, max_new_tokens=6)
    assert other.notes == (
        "sampling.max_turns is 5 here, and was 2 in training",
        "model.quantize is none here, and was int8 in training",
    )
    predict.main([f"--workdir={workdir}", f"--image={picture}", "--question=which?", "--dtype=float32"])
    assert "note: model.dtype is float32 here, and was bfloat16 in training" in capsys.readouterr().err


def test_defaults_that_an_adapter_does_not_record_are_said(model: Path, picture: Path, tmp_path: Path) -> None:
    workdir = small_model.write_workdir(tmp_path / "rft", model, steps=(2,))
    folder = tmp_path / "peft"
    export.main([f"--workdir={workdir}", "--to=peft", f"--out={folder}"])
    assert asking.load(folder).notes == ()
    (folder / "pixelis.json").unlink()
    assert asking.load(folder, model=str(model), max_turns=3, max_new_tokens=4).notes == (
        f"{folder} does not record how it was trained, so these are defaults: sampling.context_tokens 8192;"
        " tools.names ZOOM_IN; model.dtype float32; model.quantize none",
    )


def test_half_a_character_is_refused(model: Path, picture: Path) -> None:
    with pytest.raises(UserError, match="the question has half of a surrogate pair"):
        pixelis_jax.ask(pixelis_jax.load(model=str(model), max_new_tokens=2), picture, "\ud800x")


@pytest.mark.parametrize("names", ["", " , "])
def test_no_tool_is_named(model: Path, picture: Path, names: str) -> None:
    with pytest.raises(UserError, match="--tools names no tool"):
        run(model, picture, f"--tools={names}")
    run(model, picture, "--tools=ZOOM_IN,", "--max_new_tokens=2")


def test_ask_from_python(model: Path, picture: Path, capsys) -> None:
    """A file, its pixels and Pillow's picture are the same question, and the command's."""
    ready = pixelis_jax.load(model=str(model), max_new_tokens=4)
    pixels = open_rgb(picture)
    found = [
        pixelis_jax.ask(ready, image, "which digit?") for image in (picture, pixels, Image.open(picture), [pixels])
    ]
    texts = [[turn.text for turn in dialogue.turns] for dialogue in found]
    assert texts[0] == texts[1] == texts[2] == texts[3] and texts[0]
    assert len(ready.samplers) == 1  # compiled once
    run(model, picture)
    assert all(_clean(text) in capsys.readouterr().out for text in texts[0][:1])
    for wrong, words in ((pixels[..., 0], r"an image is uint8\[90, 120\]"), (3, "an image is int; give a file")):
        with pytest.raises(UserError, match=words):
            pixelis_jax.ask(ready, wrong, "which digit?")
    with pytest.raises(UserError, match="'turns' is no setting; use max_new_tokens"):
        pixelis_jax.load(model=str(model), turns=3)


def test_no_tool_is_not_the_default(model: Path, picture: Path) -> None:
    with pytest.raises(UserError, match="tool"):
        predict.main([f"--image={picture}", f"--model={model}", "--question=which digit?", "--tools="])
