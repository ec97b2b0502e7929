"""Checkpoints of the Hugging Face hub, through `huggingface_hub` and its cache."""

import re
from pathlib import Path

from pixelis_jax.types import UserError

# "owner/name"; not "./a/b", "~/a" or a path of more parts
_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
FILES = (
    "config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "chat_template*",
    "tokenizer*",
    "vocab.json",
    "merges.txt",
    "pixelis.json",
)


def is_id(name: str) -> bool:
    """Whether a name can be a hub's "owner/name"."""
    return _ID.fullmatch(name) is not None


def download(name: str) -> Path:
    """Folder of a checkpoint's files in the cache, fetched where they are not there yet.

    Without network (or with HF_HUB_OFFLINE=1) what the cache has is used. Raises UserError, one line with the remedy,
    where the hub does not know the name, wants terms accepted first, or can't be reached.
    """
    import huggingface_hub  # takes a second, and most models are local
    from huggingface_hub import errors

    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=list(FILES)))
    except errors.GatedRepoError:
        problem = "is gated on the hub; accept its terms on its page, then log in (`hf auth login`)"
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        problem = "is no directory and not on the hub; check the name, or log in (`hf auth login`) if it is private"
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        problem = (
            "is no directory, not in the hub's cache, and the hub can't be reached; give a directory, or fetch it where"
            f" there is network: `hf download {name}`"
        )
    except (errors.HfHubHTTPError, OSError) as error:
        words = " ".join(str(error).split())[:200]
        problem = f"can't be fetched from the hub ({words}); run this again, it goes on where it stopped"
    raise UserError(f"model {name!r} {problem}")
