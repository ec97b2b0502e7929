"""Text and images to tokens and back: tokenizer, dialogue template and image budgets of one model directory."""

import dataclasses
import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from absl import logging
from tokenizers import Tokenizer

from pixelis_jax.models import checkpoint_files, image_processor, preprocessor
from pixelis_jax.models.config import ModelConfig, VisionConfig, eos_token_ids, read_object
from pixelis_jax.models.families import FAMILIES
from pixelis_jax.models.image_processor import PixelBudget, size_of
from pixelis_jax.models.rows import Row, power_bucket
from pixelis_jax.types import ImageBatch, UserError

SYSTEM_PROMPT = (
    "Think in <think></think>, then call one tool in <tool_call></tool_call> or answer in <answer></answer>."
    "\nTools:\n{schemas}"
)
_VISION_TOKENS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}
# Added to it where boxes are not in the pixels of an image as it is seen.
FRAMES = {"pixels": "", "norm1000": "\nCoordinates go from 0 to 1000 over the width and over the height of an image."}


@dataclasses.dataclass(frozen=True)
class Placed:
    """An image that has a place in a feature table: what a Row needs to point at it."""

    size: tuple[int, int]  # (height, width) in pixels, after resize
    first_row: int  # of its part of the table


class Processor:
    """Tokenizer, template and image budgets. `overview` bounds task images, `crop` the images that tools return.

    `coordinates` is the frame of boxes in calls ("": the family's own) and stands in the system prompt. A sampled turn
    ends with any of `end_of_turn`: the template's `<|im_end|>` and the `stops` of the checkpoint.
    """

    def __init__(
        self,
        config: ModelConfig,
        tokenizer: Tokenizer,
        *,
        overview: PixelBudget,
        crop: PixelBudget,
        stops: Sequence[int] = (),
        coordinates: str = "",
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.overview = overview
        self.crop = crop
        self._said_larger = False
        if config.vision is not None:
            _check_budgets(overview, crop, config.vision.factor)
        self.coordinates = coordinates or FAMILIES[config.model_type].coordinates
        if self.coordinates not in FRAMES:
            raise UserError(f"image.coordinates {coordinates!r:.40} is no known frame; use one of {', '.join(FRAMES)}")
        names = [re.escape(token.content) for token in tokenizer.get_added_tokens_decoder().values()]
        self._spelled_token = re.compile(f"(?={'|'.join(names)})")  # where one begins
        self.im_start, self.im_end = (self._id(t) for t in ("<|im_start|>", "<|im_end|>"))
        self.end_of_turn = tuple(dict.fromkeys((self.im_end, *stops)))

    def _id(self, token: str) -> int:
        found = self.tokenizer.token_to_id(token)
        if found is None:
            raise UserError(f"its tokenizer has no token {token!r}; a Qwen ChatML tokenizer is needed")
        return found

    @property
    def pad(self) -> int:
        return self.config.pad_token_id

    # Text -----------------------------------------------------------------------------------------------------------
    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def encode_within(self, before: str, text: str, after: str = "") -> list[int]:
        """Ids of `before + text + after`, in which only the template's own parts can be special tokens.

        A user's question, and an error that quotes the policy, may spell such tokens: there they are characters, or
        they would forge placeholders and ends of turns.
        """
        starts = [match.start() for match in self._spelled_token.finditer(text)]
        if not starts:
            return self.encode(before + text + after)
        # Cut behind the first character of each, so that no piece spells one.
        edges = [0, *(start + 1 for start in starts), len(text)]
        pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
        return [i for piece in (before, *pieces, after) for i in self.encode(piece)]

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    # Images ---------------------------------------------------------------------------------------------------------
    def fit(self, height: int, width: int, *, crop: bool) -> tuple[int, int]:
        """(height, width) at which the model sees an image of this size.

        A long and narrow image keeps one token of its short side, as in the reference, and may so exceed its budget:
        said once.
        """
        budget = self.crop if crop else self.overview
        size = image_processor.smart_resize(height, width, factor=self.config.need_vision().factor, budget=budget)
        if size[0] * size[1] > budget.max_pixels and not self._said_larger:
            self._said_larger = True
            logging.warning(
                "an image of %dx%d px is seen at %dx%d, which is %d px over the budget of %d: it is too narrow for"
                " less, as in the reference; others like it are not named",
                *(width, height, size[1], size[0], size[0] * size[1] - budget.max_pixels, budget.max_pixels),
            )
        return size

    def full_tokens(self, *, crop: bool) -> int:
        """Vision tokens of an image that fills its budget; of a narrow one they may be more."""
        vision, budget = self.config.vision, self.crop if crop else self.overview
        return 0 if vision is None else budget.max_pixels // vision.factor**2

    def fit_crop(self, height: int, width: int) -> tuple[int, int]:
        return self.fit(height, width, crop=True)

    def fit_overview(self, height: int, width: int) -> tuple[int, int]:
        return self.fit(height, width, crop=False)

    def seen(self, image: np.ndarray, *, crop: bool) -> np.ndarray:
        """The image resized into its budget, u8[height, width, 3]."""
        return image_processor.resize(image, self.fit(*image.shape[:2], crop=crop))

    def windows(self, images: Sequence[np.ndarray], *, crop: bool, least: int = 0) -> int:
        """Window bucket for resized images: what a full budget of square shape needs, or more, in powers of two.

        At least `least`, which processes that pack parts of one batch agree on.
        """
        vision = self.config.need_vision()
        budget = image_processor.window_bucket(self.crop if crop else self.overview, vision)
        return max([least, budget, *(power_bucket(image_processor.windows_of(size_of(i), vision)) for i in images)])

    def pack(
        self, images: Sequence[np.ndarray], *, crop: bool, count: int | None = None, windows: int = 0
    ) -> ImageBatch:
        """ImageBatch of resized images, padded to `count` images and to the window bucket, `windows` at least."""
        windows = self.windows(images, crop=crop, least=windows)
        return image_processor.pack(images, self.config.need_vision(), windows=windows, count=count)

    def place(self, images: Sequence[np.ndarray], *, crop: bool, first_row: int = 0, windows: int = 0) -> list[Placed]:
        """Where `pack`'s images stand in the feature table whose part for them begins at `first_row`."""
        if not images:
            return []
        windows = self.windows(images, crop=crop, least=windows)
        step = image_processor.rows_per_image(windows, self.config.need_vision())
        return [Placed(size_of(image), first_row + i * step) for i, image in enumerate(images)]

    def image_tokens(self, size: tuple[int, int]) -> int:
        factor = self.config.need_vision().factor
        return (size[0] // factor) * (size[1] // factor)

    # Dialogue -------------------------------------------------------------------------------------------------------
    def append_image(self, row: Row, image: Placed) -> None:
        """`<|vision_start|>`, the placeholders, `<|vision_end|>`."""
        vision = self.config.need_vision()
        grid = (image.size[0] // vision.factor, image.size[1] // vision.factor)
        row.append_text([self.config.vision_start_token_id])
        feature_rows = image.first_row + image_processor.token_rows(image.size, vision)
        row.append_image(grid, feature_rows, placeholder=self.config.image_token_id)
        row.append_text([self.config.vision_end_token_id])

    def append_video(self, row: Row, groups: Sequence[Placed], *, frames: int, fps: float) -> None:
        """A video of `frames` frames, `fps` of them a second, as the places of its `image_processor.frame_groups`.

        Qwen2.5-VL: all groups between one `<|vision_start|>` and `<|vision_end|>`, times in `tokens_per_second`.
        Qwen3-VL: each group between its own, behind its middle time in words.
        """
        vision, size = self.config.need_vision(), groups[0].size
        step, factor = vision.temporal_patch_size, vision.factor
        rows = [group.first_row + image_processor.token_rows(size, vision) for group in groups]
        grid = (size[0] // factor, size[1] // factor)
        start, end = self.config.vision_start_token_id, self.config.vision_end_token_id
        placeholder = self.config.video_token_id
        if isinstance(vision, VisionConfig):
            row.append_text([start])
            time_step = vision.tokens_per_second * step / fps
            row.append_video((len(groups), *grid), np.concatenate(rows), placeholder=placeholder, time_step=time_step)
            row.append_text([end])
            return
        for i, part in enumerate(rows):
            first, last = step * i, min(step * (i + 1), frames) - 1
            row.append_text([*self.encode(f"<{(first / fps + last / fps) / 2:.1f} seconds>"), start])
            row.append_image(grid, part, placeholder=placeholder)
            row.append_text([end])

    def append_prompt(self, row: Row, question: str, images: Sequence[Placed], schemas: str) -> None:
        """System prompt with the tools, the user's images and question, and the opening of the assistant's turn."""
        system = SYSTEM_PROMPT.format(schemas=schemas) + FRAMES[self.coordinates]
        before = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n"
        if images:
            row.append_text(self.encode(before))
            before = ""
        for image in images:
            self.append_image(row, image)
        row.append_text(self.encode_within(before, question, "<|im_end|>\n<|im_start|>assistant\n"))

    def append_observation(self, row: Row, text: str, image: Placed | None) -> None:
        """What follows a closed assistant turn: its newline, the tool's response as a user turn, the next opening."""
        before, after = "\n<|im_start|>user\n<tool_response>", "</tool_response><|im_end|>\n<|im_start|>assistant\n"
        if image is None:  # in one piece: where the tags are no tokens of their own, they may merge with the text
            row.append_text(self.encode_within(before, text, after))
            return
        row.append_text(self.encode_within(before, text))
        self.append_image(row, image)
        row.append_text(self.encode(after))


def _check_budgets(overview: PixelBudget, crop: PixelBudget, factor: int) -> None:
    """UserError where not even one vision token of a model, of `factor` px a side, is inside a budget."""
    for name, budget in (("image.max_pixels", overview), ("image.crop_max_pixels", crop)):
        if budget.max_pixels < factor**2:
            raise UserError(
                f"{name} {budget.max_pixels} is below one vision token of this model, {factor}x{factor} ="
                f" {factor**2} px; raise it"
            )


def load(
    directory: Path,
    config: ModelConfig,
    *,
    overview: PixelBudget | None,
    crop: PixelBudget | None,
    coordinates: str = "",
) -> Processor:
    """Processor of a model directory; a budget of None takes the one of `preprocessor_config.json`."""
    file = directory / "tokenizer.json"
    tokenizer = read_tokenizer(file)
    count, most = tokenizer.get_vocab_size(), config.text.vocab_size
    if count > most:
        raise UserError(
            f"{file}: {count} tokens are more than the {most} of config.json; copy both from the same checkpoint"
        )
    token, last = max(tokenizer.get_vocab().items(), key=lambda item: item[1], default=("", 0))
    if last >= most:
        raise UserError(
            f"{file}: token {token!r:.40} has id {last}, not below the {most} of config.json; copy both from the same"
            " checkpoint"
        )
    for name, token in _VISION_TOKENS.items() if config.vision else ():
        asked, found = getattr(config, name), tokenizer.token_to_id(token)
        if asked != found:
            there = "no token" if found is None else f"token {found}"
            raise UserError(
                f"{file}: {token} is {there}, and {name} of config.json is {asked}; copy both from the same checkpoint"
            )
    if config.vision is None:
        overview = crop = PixelBudget(0, 0)  # never used: a text-only model refuses images
    else:
        preprocessor.refuse_none(directory)
    overview = overview or preprocessor.read_budget(directory)
    stops = read_stops(directory, config)
    crop = crop or overview
    try:
        return Processor(config, tokenizer, overview=overview, crop=crop, stops=stops, coordinates=coordinates)
    except UserError as error:
        raise UserError(f"{directory}: {error}") from None


def read_stops(directory: Path, config: ModelConfig) -> tuple[int, ...]:
    """Ids that end a generated text: of `generation_config.json`, else of `config.json`, as in the reference.

    Nothing else of that file is read: how turns are sampled is `config.sampling`.
    """
    file = directory / "generation_config.json"
    found = read_object(file).get("eos_token_id") if file.is_file() else None
    if found is None:
        return (config.eos_token_id, *config.other_eos_token_ids)
    stops = eos_token_ids(found, file)
    if max(stops) >= config.text.vocab_size:
        raise UserError(f"{file}: eos_token_id {max(stops)} is not below vocab_size; restore the file")
    return stops


def read_tokenizer(file: Path) -> Tokenizer:
    """The tokenizer of a `tokenizer.json`. Raises UserError where it is missing or damaged."""
    if not file.is_file():
        raise UserError(f"{file}: not there; copy the checkpoint's tokenizer.json")
    checkpoint_files.refuse_pointer(file)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more special
        raise UserError(f"{file}: is no tokenizer ({str(error)[:200]}); copy it again") from None
    # Of the last call before it was saved; the reference resets both at each call.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
