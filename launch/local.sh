#!/usr/bin/env bash
# Sets everything up, then runs the main job on this machine; arguments are forwarded to it.
# Example: ./launch/local.sh --workdir=runs/first --config.seed=1
# Call it from any folder: paths that you give start there, and the default workdir is runs/rft of the repository.
set -euo pipefail
caller=$PWD
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
# shellcheck source=launch/setup.sh
source launch/setup.sh
set_up ""

arguments=()
for argument in "$@"; do
  value=${argument#*=}
  case $argument in
    *=/* | *=) ;; # absolute or empty
    --workdir=*) [ "$caller" -ef . ] || argument=${argument%%=*}=$caller/$value ;;
    --config=* | --config.init_from=* | --config.model.name=* | --config.model.init_from=*)
      # a path, or the name of something that comes with the repository
      [ "$caller" -ef . ] || [ ! -e "$caller/${value%%:*}" ] || argument=${argument%%=*}=$caller/$value
      ;;
  esac
  arguments+=("$argument")
done
say "running: $python -m pixelis_jax.main --config=configs/rft.py ${arguments[*]}"
exec "$python" -m pixelis_jax.main --config=configs/rft.py "${arguments[@]}"
