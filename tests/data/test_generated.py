"""The samples that a job makes for itself: never those that another job made with other settings."""

import functools
import json
import shutil
import types

import pytest
from resolved import resolved

from pixelis_jax import sft
from pixelis_jax.data import generated
from pixelis_jax.data.synthesis.samples import SynthesisConfig
from pixelis_jax.models.image_processor import PixelBudget, smart_resize
from pixelis_jax.tools.base import View
from pixelis_jax.types import UserError

FIT = functools.partial(smart_resize, factor=28, budget=PixelBudget(56 * 56, 112 * 112))
CONFIG = SynthesisConfig(seed=1, view=View(FIT, FIT), ocr=False)
SETTINGS = {"seed": 1, "ocr": False, "crop_max_pixels": 112 * 112}
COUNT = 14


def found(root, count=COUNT, **settings):
    return generated.find(root, CONFIG, SETTINGS | settings, count)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    made = found(root)
    assert (made.path, made.is_whole, made.note) == (root / "cota_14", False, "")
    made.make(workers=1)
    return root


@pytest.fixture
def root(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "runs")


def test_the_same_settings_find_what_is_there(root):
    made = found(root)
    assert made.path == root / "cota_14" and made.is_whole and made.note == ""
    (made.path / "metadata.json").unlink()
    (made.path / ".scoring").mkdir()  # scoring was killed
    again = found(root)
    assert again.path == made.path and not again.is_whole
    again.make(workers=1)
    assert found(root).is_whole


@pytest.mark.parametrize("settings", [{"ocr": True}, {"crop_max_pixels": 200 * 200}, {"seed": 2}, {"factor": 32}])
def test_other_settings_get_a_folder_of_their_own(root, settings):
    (name, value), before = next(iter(settings.items())), found(root)
    made = found(root, **settings)
    assert made.path != before.path and made.path.name.startswith("cota_14_") and not made.is_whole
    assert made.note.startswith(
        f"{root / 'cota_14'} holds other samples ({name}: {SETTINGS.get(name)!r}, now {value!r})"
    )
    assert made.job.out.name == f"{made.path.name}_samples"
    assert found(root, **settings).path == made.path and found(root).path == before.path and found(root).is_whole
    assert found(root, count=21).path == root / "cota_21"


def test_both_folders_are_found_again(root):
    other = found(root, factor=32)
    other.make(workers=1)
    assert found(root, factor=32).is_whole and found(root).is_whole
    (other.job.out / "generation.json").unlink()
    with pytest.raises(UserError, match=rf"{other.path}: was changed since it was made \(it has no generation.json\)"):
        found(root, factor=32)


def write(file, **changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: write(path / "metadata.json", scorer="mine.py:score"), "scored by mine.py:score"),
        (lambda path: write(path / "metadata.json", formula_version="0"), "version 0"),
        (lambda path: write(path / "metadata.json", command="other"), "scored by"),
        (lambda path: (path / "metadata.json").unlink(), "it has no metadata.json"),
        (lambda path: write(path / "metadata.json", image_root="../elsewhere"), "scored from ../elsewhere"),
        (lambda path: shutil.rmtree(f"{path}_samples"), "is gone"),
        (lambda path: (path.parent / f"{path.name}_samples" / "cota.jsonl").write_text("{}\n"), "was changed"),
        (lambda path: (path.parent / f"{path.name}_samples" / "generation.json").unlink(), "no generation.json"),
        (lambda path: write(path.parent / f"{path.name}_samples" / "generation.json", asked=SETTINGS), "num_samples"),
    ],
)
def test_what_was_made_otherwise_is_not_taken(root, spoil, why):
    """By hand, by `cota score` with another rule, from other samples, by an earlier version."""
    spoil(root / "cota_14")
    made = found(root)
    assert why in made.note and made.path.name != "cota_14" and not made.is_whole


def test_everything_that_samples_depend_on_is_in_the_settings(small_policy):
    """Two jobs whose models see otherwise, or whose tools differ, differ in their settings."""
    vision = types.SimpleNamespace(factor=28)

    def settings(names=("ZOOM_IN", "READ_TEXT"), factor=28, frame="pixels", **image):
        config = resolved("configs/sft.py").image
        budgets = {"min_pixels": config.min_pixels, "max_pixels": config.max_pixels} | image
        vision.factor = factor
        processor = types.SimpleNamespace(
            overview=PixelBudget(budgets["min_pixels"], budgets["max_pixels"]),
            crop=PixelBudget(config.crop_min_pixels, image.get("crop", config.crop_max_pixels)),
            coordinates=frame,
            config=types.SimpleNamespace(need_vision=lambda: vision),
        )
        return sft.data_settings(SynthesisConfig(seed=1, view=CONFIG.view, ocr="READ_TEXT" in names), processor)

    kinds = [
        settings(),
        settings(names=("ZOOM_IN",)),
        settings(factor=32),
        settings(frame="norm1000"),
        settings(min_pixels=1),
        settings(max_pixels=200 * 200),
        settings(crop=200 * 200),
    ]
    assert len({json.dumps(kind, sort_keys=True) for kind in kinds}) == len(kinds)
    real = sft.data_settings(CONFIG, small_policy.processor)
    assert json.loads(json.dumps(real)) == real and real["factor"] == 28 and real["overview_max_pixels"] == 84 * 84
