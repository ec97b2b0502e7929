"""The bundled model in `transformers`: same logits, same greedy text, and a directory that its loaders accept."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from one_tool import ZOOM

from pixelis_jax import parallel
from pixelis_jax.data.pixelsearch.questions import make_task
from pixelis_jax.models import policy as policies
from pixelis_jax.models.policy import BUNDLED
from pixelis_jax.models.processor import SYSTEM_PROMPT, Placed
from pixelis_jax.models.rows import Row, pad_rows
from pixelis_jax.rollout.engine import Engine, SamplingConfig, row_keys
from pixelis_jax.tools.base import schemas

torch = pytest.importorskip("torch", reason="live parity needs the `parity` extra (torch)")
transformers = pytest.importorskip("transformers")

import torch_reference  # noqa: E402  only where torch is

TOLERANCE = 1e-4
LENGTH = 160
IMAGES = {"one_image": (1,), "two_images": (2,), "no_image": (0,), "mixed_batch": (1, 0, 2)}


@pytest.fixture(scope="module", params=list(BUNDLED))
def directory(request):
    return BUNDLED[request.param]


@pytest.fixture(scope="module")
def policy(directory):
    mesh = parallel.make_mesh(parallel.MeshShape(), jax.devices()[:1])
    return policies.load(str(directory), mesh=mesh)


@pytest.fixture(scope="module")
def theirs(directory):
    model = transformers.Qwen2_5_VLForConditionalGeneration.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


@pytest.fixture(scope="module")
def tasks():
    return [make_task(0, "heldout", index) for index in range(4)]


class Case:
    """Rows of prompts with `counts` images each, for both implementations."""

    def __init__(self, policy, theirs, directory, tasks, counts):
        processor = policy.processor
        shown = [tasks[i : i + n] for i, n in enumerate(counts)]
        pictures = [task.images[0] for group in shown for task in group]
        seen = [processor.seen(image, crop=False) for image in pictures]
        # Three places everywhere, so that all cases share a compiled tower.
        self.images = processor.pack(seen, crop=False, count=3)
        places = iter(processor.place(seen, crop=False))
        self.rows = []
        for n, task in zip(counts, tasks, strict=False):
            row = Row()
            processor.append_prompt(row, task.question, [next(places) for _ in range(n)], schemas(ZOOM))
            self.rows.append(row)
        arguments = torch_reference.batch(
            [row.tokens for row in self.rows], [row.image_index for row in self.rows], side="left", pad=processor.pad
        )
        if pictures:
            loaded = torch_reference.Qwen2VLImageProcessorPil.from_pretrained(directory)
            out = loaded(images=pictures, return_tensors="np")
            arguments |= {name: torch.tensor(value) for name, value in out.items()}
        self.arguments = arguments


@pytest.fixture(scope="module")
def cases(policy, theirs, directory, tasks):
    return {name: Case(policy, theirs, directory, tasks, counts) for name, counts in IMAGES.items()}


@pytest.fixture(scope="module")
def forward(policy):
    variables = {"params": policy.params}
    encode = jax.jit(lambda images: policy.model.apply(variables, images, method="encode_images"))
    logits = jax.jit(lambda rows, table: policy.model.apply(variables, rows, table, method="forward_logits"))
    return encode, logits


def three(batch):
    return jax.tree.map(lambda x: np.concatenate([x, np.repeat(x[:1], 3 - len(x), axis=0)]), batch)


@pytest.mark.parametrize("name", IMAGES)
def test_logits(policy, theirs, cases, forward, name):
    """Theirs are left-padded in the mixed batch, ours right-padded."""
    case, (encode, logits) = cases[name], forward
    ours = np.asarray(logits(three(pad_rows(case.rows, length=LENGTH, pad=policy.processor.pad)), encode(case.images)))
    expected = torch_reference.logits(theirs, case.arguments)
    for i, row in enumerate(case.rows):
        assert np.abs(ours[i, : len(row)] - expected[i, -len(row) :]).max() < TOLERANCE


def test_greedy_text(policy, theirs, cases, forward):
    processor, (encode, _) = policy.processor, forward
    sampling = SamplingConfig(temperature=0.0, max_new_tokens=16, context_tokens=LENGTH + 16)
    engine = Engine(policy.model, sampling, end_of_turn=processor.im_end)
    zeros = np.zeros(3, np.uint32)
    keys = row_keys(np.uint32(0), np.uint32(0), zeros, zeros, np.uint32(0))
    variables = {"params": policy.params}
    for name, case in cases.items():
        rows = three(pad_rows(case.rows, length=LENGTH, pad=processor.pad))
        state = engine.prefill(variables, rows, encode(case.images), repeat=1)
        out = jax.device_get(engine.generate(variables, state, keys, jnp.ones(3, bool))[0])
        expected = torch_reference.greedy(theirs, case.arguments, tokens=16)
        for i in range(len(case.rows)):
            n = out.count[i]
            assert out.tokens[i, :n].tolist() == expected[i, :n].tolist(), name


def test_auto_tokenizer_gives_our_ids(directory, policy):
    auto = transformers.AutoTokenizer.from_pretrained(directory)
    text = "<|im_start|>user\nWhich digit is inside the red circle?<|im_end|>\n<think>Ünïcode 7</think>"
    assert auto(text, add_special_tokens=False).input_ids == policy.processor.encode(text)
    assert auto.eos_token_id == policy.processor.im_end == policy.processor.config.eos_token_id
    assert auto.pad_token_id == policy.processor.pad
    assert auto.decode(policy.processor.encode(text)) == text


def test_chat_template_gives_the_ids_of_the_prompt(directory, policy, cases, tasks):
    """With the system message, and each placeholder repeated for its image's tokens."""
    auto = transformers.AutoTokenizer.from_pretrained(directory)
    placeholder = policy.processor.config.image_token_id
    for name, case in cases.items():
        for row, task, n in zip(case.rows, tasks, IMAGES[name], strict=False):
            content = [{"type": "image"}] * n + [{"type": "text", "text": task.question}]
            messages = [
                {"role": "system", "content": SYSTEM_PROMPT.format(schemas=schemas(ZOOM))},
                {"role": "user", "content": content},
            ]
            text = auto.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            assert text.count("<|image_pad|>") == n
            ids = auto(text, add_special_tokens=False).input_ids
            assert ids == collapsed(row.tokens, placeholder)


def collapsed(tokens, placeholder):
    """Each run of placeholders as one."""
    return [t for t, before in zip(tokens, [-1, *tokens], strict=False) if not t == placeholder == before]


def test_chat_template_gives_the_ids_of_a_tool_dialogue(directory, policy, cases, tasks):
    auto = transformers.AutoTokenizer.from_pretrained(directory)
    processor, row = policy.processor, cases["one_image"].rows[0].copy()
    call, answer = "<think>Look.</think><tool_call>{}</tool_call>", "<think>Read.</think><answer>7</answer>"
    row.append_text([*processor.encode(call), processor.im_end], policy=True)
    processor.append_observation(row, "Image 2, 56x28, 1.5x", Placed((56, 28), 0))
    row.append_text([*processor.encode(answer), processor.im_end], policy=True)
    image, text = {"type": "image"}, {"type": "text"}
    messages = [
        {"role": "system", "content": SYSTEM_PROMPT.format(schemas=schemas(ZOOM))},
        {"role": "user", "content": [image, text | {"text": tasks[0].question}]},
        {"role": "assistant", "content": call},
        {
            "role": "user",
            "content": [
                text | {"text": "<tool_response>Image 2, 56x28, 1.5x"},
                image,
                text | {"text": "</tool_response>"},
            ],
        },
        {"role": "assistant", "content": answer},
    ]
    ids = auto(auto.apply_chat_template(messages, tokenize=False), add_special_tokens=False).input_ids
    # The template closes the last turn with the newline that a rollout adds only when the dialogue goes on.
    assert ids == [*collapsed(row.tokens, processor.config.image_token_id), *processor.encode("\n")]


def test_image_processor_of_the_directory_sees_our_sizes(directory, policy, tasks):
    loaded = torch_reference.Qwen2VLImageProcessorPil.from_pretrained(directory)
    for task in tasks:
        _, rows, columns = loaded(images=[task.images[0]], return_tensors="np")["image_grid_thw"][0]
        assert (rows * 14, columns * 14) == policy.processor.fit_overview(*task.images[0].shape[:2])


def test_auto_processor_classes_know_the_directory(directory):
    config = transformers.AutoConfig.from_pretrained(directory)
    assert config.model_type == "qwen2_5_vl"
    assert config.vision_config.window_size == 56
