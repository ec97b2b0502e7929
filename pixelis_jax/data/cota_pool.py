"""A pool of generated CoTA dialogues in memory, for pretraining: made once by many processes, without files."""

import dataclasses
import multiprocessing
from collections.abc import Iterable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor

import grain
import numpy as np

from pixelis_jax.data.corpus import ALL, TRAINED
from pixelis_jax.data.cota_batches import Encoded, encode_sample
from pixelis_jax.data.synthesis.samples import BLOCK, SynthesisConfig, make_block
from pixelis_jax.models.processor import Processor


@dataclasses.dataclass(frozen=True)
class Pool(grain.transforms.Map):
    """Encoded samples 0 .. N - 1 of one category; as a Grain transform it gives the sample of a number."""

    samples: tuple[Encoded, ...]
    name: str = "the pool of generated dialogues"
    categories: tuple[str, ...] = (ALL,)

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def category(self) -> np.ndarray:
        return np.zeros(len(self.samples), np.uint8)

    @property
    def weights(self) -> np.ndarray:
        return np.ones(len(self.samples), np.float32)

    def numbers(self, category: str) -> np.ndarray:
        return np.arange(len(self.samples)) if category == ALL else np.zeros(0, np.int64)

    def map(self, element: int) -> Encoded:
        return self.samples[int(element)]


def make_pool(config: SynthesisConfig, processor: Processor, *, samples: int, workers: int) -> Pool:
    """About `samples` dialogues of the kinds that are trained on, by `workers` processes (0: by threads)."""
    jobs = [(config, processor, block) for block in range(-(-samples // BLOCK))]
    spawn = multiprocessing.get_context("spawn")
    pool: Executor = ProcessPoolExecutor(workers, mp_context=spawn) if workers else ThreadPoolExecutor(2)
    with pool:
        made = [sample for block in pool.map(_encode_block, jobs, chunksize=8) for sample in block]
    return Pool(tuple(_numbered(made)))


def _encode_block(job: tuple[SynthesisConfig, Processor, int]) -> list[Encoded]:
    config, processor, block = job
    made = make_block(config, block).samples
    return [
        encode_sample(sample, sample.images, processor, config.tools(), number=0)
        for sample in made
        if sample.sample_type in TRAINED
    ]


def _numbered(samples: Iterable[Encoded]) -> list[Encoded]:
    return [dataclasses.replace(sample, number=number) for number, sample in enumerate(samples)]
