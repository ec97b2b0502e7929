"""The adapter around SAM2 with a model of a few lines in its place; no weights are needed or looked for."""

import importlib.util
import sys
import types

import numpy as np
import pytest

from pixelis_jax.tools import Session, execute, sam2, segment_object_at
from pixelis_jax.types import ToolCall, UserError


class Array(np.ndarray):
    """What of a tensor the adapter calls."""

    def cpu(self):
        return self

    float = numpy = to = lambda self, *_: self


def tensor(values):
    return np.asarray(values).view(Array)


class Inputs(dict):
    def to(self, device):
        return Inputs(self, device=device)


class FakeProcessor:
    @classmethod
    def from_pretrained(cls, path, *, local_files_only):
        assert local_files_only
        return cls()

    def __call__(self, *, images, input_points, input_labels, return_tensors):
        assert input_labels == [[[1]]] and return_tensors == "pt"
        return Inputs(shape=images.shape[:2], point=input_points[0][0][0], original_sizes=tensor([images.shape[:2]]))

    def post_process_masks(self, masks, original_sizes):
        assert original_sizes.tolist() == [list(masks.shape[-2:])]
        return [masks[0] > 0]


class FakeModel:
    """Proposes the left half (score .9), the right half (.8) and the whole (.5), the corner pixel in none of them."""

    device = "cpu"
    made = 0

    @classmethod
    def from_pretrained(cls, path, *, local_files_only):
        assert local_files_only
        cls.made += 1
        return cls()

    def to(self, device):
        return self

    eval = lambda self: self  # noqa: E731

    def __call__(self, *, shape, multimask_output, **_):
        assert multimask_output
        masks = np.full((1, 1, 3, *shape), 1.0)
        masks[..., 0, :, shape[1] // 2 :] = masks[..., 1, :, : shape[1] // 2] = -1
        masks[..., 0, 0] = -1
        return types.SimpleNamespace(pred_masks=tensor(masks), iou_scores=tensor([[[0.9, 0.8, 0.5]]]))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    context = types.SimpleNamespace(__enter__=lambda *_: None, __exit__=lambda *_: None)
    torch = types.SimpleNamespace(inference_mode=lambda: _Nothing(), context=context)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(
        sys.modules, "transformers", types.SimpleNamespace(Sam2Model=FakeModel, Sam2Processor=FakeProcessor)
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(FakeModel, "made", 0)
    return tmp_path


class _Nothing:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


IMAGE = np.zeros((20, 30, 3), np.uint8)


def test_the_best_mask_that_holds_the_point_and_one_model_for_all_calls(folder):
    segment = sam2.segmenter(folder)
    assert FakeModel.made == 0
    left, right = segment(IMAGE, (5, 9)), segment(IMAGE, (20, 9))
    assert left.dtype == bool and left[:, :15][1:].all() and not left[:, 15:].any()
    assert right[:, 15:].all() and FakeModel.made == 1


def test_it_stands_behind_the_tool(folder):
    tools = {"SEGMENT_OBJECT_AT": segment_object_at.make(sam2.segmenter(folder), name="sam2 fake")}
    session = Session([IMAGE], [(20, 30)], fit_crop=lambda height, width: (height, width))
    pytest.importorskip("cv2", reason="the outline is drawn with OpenCV, of the extra [tools]")
    seen = execute(session, ToolCall("SEGMENT_OBJECT_AT", {"point": [20, 9]}), tools=tools)
    assert seen.data == {"object_id": 1, "bbox_2d": [15, 0, 30, 20], "area_px": 300, "image": 2}


def test_no_directory_and_no_package_are_said_at_once(folder, monkeypatch, tmp_path):
    with pytest.raises(UserError, match=r"nowhere: has no config\.json; give the directory of a SAM2 model"):
        sam2.segmenter(tmp_path / "nowhere")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else object())
    with pytest.raises(UserError, match="SAM2 needs the package torch, which is not installed: pip install torch"):
        sam2.segmenter(folder)


def test_a_damaged_model_is_one_line(folder, monkeypatch):
    def broken(path, *, local_files_only):
        raise OSError("no weights\nin this file")

    monkeypatch.setattr(FakeModel, "from_pretrained", broken)
    with pytest.raises(
        UserError, match=r"can't be loaded as a SAM2 model \(no weights in this file\); download it again"
    ):
        sam2.segmenter(folder)(IMAGE, (5, 9))
