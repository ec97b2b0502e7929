#!/usr/bin/env bash
# Sets everything up, then runs the main job on this machine; arguments are forwarded to it.
# Example: ./launch/local.sh --workdir=runs/first --config.seed=1
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=launch/setup.sh
source launch/setup.sh
set_up ""
say "running: $python -m pixelis_jax.main --config=configs/rft.py $*"
exec "$python" -m pixelis_jax.main --config=configs/rft.py "$@"
