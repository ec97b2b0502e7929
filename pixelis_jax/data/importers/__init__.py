"""Reading other people's data into CoTA samples. A new format is one file and one entry here."""

from pixelis_jax.data.importers import conversations, cota_json, folders, prompts
from pixelis_jax.data.importers.base import Format

# In the order in which `auto` tries them on a record.
FORMATS: dict[str, Format] = {
    "vstar": Format(folders.fits, folders.convert, "an image and a JSON file of the same name (question, options)"),
    "cota": Format(cota_json.fits, cota_json.convert, "a field trajectory"),
    "conversations": Format(conversations.fits, conversations.convert, "messages, some of them an assistant's"),
    "prompts": Format(prompts.fits, prompts.convert, "a question and an answer"),
}
