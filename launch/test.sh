#!/usr/bin/env bash
# Sets everything up, then runs lint, types and tests with coverage; arguments are forwarded to pytest.
# Exits with 0 only when all pass; the last line is pytest's. Two processes share the tests; `-n 0` keeps them in one.
# Example: ./launch/test.sh tests/test_config.py -k typo (paths start at the repository, wherever it is called from)
set -euo pipefail
caller=$PWD
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
# shellcheck source=launch/setup.sh
source launch/setup.sh
set_up test

export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}
export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-$PWD/.cache/jax}
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0.5

failed=()
check() {
  local name=$1
  shift
  printf '[test] %s\n' "$name" >&2
  "$@" || failed+=("$name")
}
check "ruff check" "$python" -m ruff check .
check "ruff format" "$python" -m ruff format --check .
check "mypy" "$python" -m mypy
[ ${#failed[@]} = 0 ] || printf '[test] failed before the tests: %s\n' "${failed[*]}" >&2

printf '[test] pytest\n' >&2
status=0
"$python" -m pytest -p launch.pytest_eta -n auto --dist loadfile --no-loadscope-reorder --cov --cov-report=term "$@" ||
  status=$?
if [ "$status" = 0 ] && [ ${#failed[@]} != 0 ]; then status=1; fi
exit "$status"
