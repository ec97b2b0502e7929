# shellcheck shell=bash
# Shared set-up of launch/*.sh, to be sourced from the repository's root: a virtual environment with pinned packages.
# Safe to repeat (a stamp skips what is done) and to interrupt (the stamp is written last; half-installed packages are redone).
#
# PIXELIS_PYTHON  the Python to use (default: the first of python3, python3.13, python3.12, python3.11 that is new enough)
# PIXELIS_VENV    the folder of the virtual environment (default: .venv)

venv=${PIXELIS_VENV:-.venv}
python=$venv/bin/python
need_mb=3072

say() { printf '[setup] %s\n' "$*" >&2; }
die() {
  printf '[setup] error: %s\n' "$*" >&2
  exit 1
}

# python_line PYTHON: prints 311, 312, ... and fails where it does not run.
python_line() { "$1" -c 'import sys; print(sys.version_info[0] * 100 + sys.version_info[1])' 2>/dev/null; }

find_python() {
  local candidate line seen=""
  for candidate in ${PIXELIS_PYTHON:-python3 python3.13 python3.12 python3.11}; do
    line=$(python_line "$candidate") || continue
    if [ "$line" -ge 311 ]; then
      [ "$line" -le 313 ] || say "Python ${line:0:1}.${line:1} is newer than what was tested (3.11 to 3.13); trying"
      printf '%s\n' "$candidate"
      return 0
    fi
    seen="$seen $candidate is Python ${line:0:1}.${line:1};"
  done
  die "Python 3.11 or newer is needed:${seen:- none of ${PIXELIS_PYTHON:-python3, python3.13, python3.12, python3.11} runs;} install one (Debian, Ubuntu: apt-get install python3 python3-venv) or name it: PIXELIS_PYTHON=/path/to/python3.12 $0"
}

check_disk() {
  local free_mb
  free_mb=$(df -Pm "$(dirname "$venv")" | awk 'NR == 2 { print $4 }')
  [ "$free_mb" -ge "$need_mb" ] || die "the disk is too full: $venv needs $need_mb MB and $free_mb MB are free; free some space, or set PIXELIS_VENV to a folder on another disk"
}

make_venv() {
  local base
  if [ -e "$venv" ] && [ ! -e "$venv/pyvenv.cfg" ] && [ -n "$(ls -A "$venv")" ]; then
    die "$venv exists and is no virtual environment: move it away, or set PIXELIS_VENV to another folder"
  fi
  base=$(find_python) || exit 1
  "$base" -c 'import venv, ensurepip' 2>/dev/null ||
    die "$base has no venv module: install it (Debian, Ubuntu: apt-get install python3-venv), then run this again"
  say "making the virtual environment $venv with $("$base" -V)"
  mkdir -p "$(dirname "$venv")"
  "$base" -m venv --clear "$venv" || die "$base could not make $venv: see the message above"
}

# A pip that was killed leaves packages without RECORD (written last), which the next pip would take for installed.
drop_half_installed() {
  local info
  for info in "$venv"/lib/python*/site-packages/*.dist-info; do
    if [ -d "$info" ] && [ ! -e "$info/RECORD" ]; then rm -rf "$info"; fi
  done
}

# show_progress TOTAL: reads pip's output, keeps it in pip.log, and shows what is done and how long it may still take.
show_progress() {
  local total=$1 count=0 line name start=$SECONDS left tty=0
  [ -t 2 ] && tty=1
  while IFS= read -r line; do
    printf '%s\n' "$line" >>"$venv/pip.log"
    case $line in
      "Collecting "*)
        count=$((count + 1))
        name=${line#Collecting }
        name=${name%% *}
        if [ "$count" -gt "$total" ]; then total=$count; fi
        # unpacking takes about as long as a quarter of the packages
        left=$(((SECONDS - start) * (total - count + total / 4) / count))
        if [ "$tty" = 1 ]; then
          printf '\r[setup] package %d of about %d, ETA %d s: %.40s\033[K' "$count" "$total" "$left" "$name" >&2
        elif [ $((count % 20)) = 1 ]; then
          say "package $count of about $total, ETA $left s"
        fi
        ;;
      "Installing collected packages"*)
        [ "$tty" = 0 ] || printf '\n' >&2
        say "unpacking $count packages (20 to 90 s)"
        ;;
    esac
  done
}

explain_failure() {
  local log=$venv/pip.log
  grep -E '^(ERROR|WARNING: Retrying)|error:' "$log" | tail -n 5 >&2
  if grep -q 'No space left on device' "$log"; then
    die "the disk is full: free $need_mb MB, then run this again (it goes on where it stopped)"
  elif grep -qE 'NewConnectionError|NameResolutionError|ConnectTimeout|Failed to establish|name resolution|Connection refused|Network is unreachable|ProxyError|Read timed out' "$log"; then
    die "pip could not reach its package index (no network, or a proxy is needed): check the connection, then run this again"
  fi
  die "pip failed; its whole output is in $log"
}

# pip_install TOTAL ARGUMENTS...
pip_install() {
  local total=$1
  shift
  : >"$venv/pip.log"
  "$python" -m pip install --progress-bar off --disable-pip-version-check --no-input -c "$constraints" "$@" 2>&1 |
    show_progress "$total"
  [ "${PIPESTATUS[0]}" = 0 ] || explain_failure
}

# has_cpu_torch: whether pip can get a torch without CUDA (on Linux, the default build brings several GB of it).
has_cpu_torch() {
  [ "$(uname -s)" = Linux ] || return 0
  "$python" -m pip index versions --disable-pip-version-check torch 2>/dev/null | grep -q "$torch_version+cpu"
}

install_parity() {
  if [ "$("$python" -c 'import importlib.metadata as m; print(m.version("torch").split("+")[0])' 2>/dev/null)" != "$torch_version" ]; then
    if ! has_cpu_torch; then
      say "no CPU build of torch $torch_version is in reach of pip: the live parity tests are skipped, the golden ones run (README, Parity, says how to add it)"
      return 0
    fi
    say "installing torch $torch_version (CPU) for the live parity tests"
    pip_install 8 "torch==$torch_version" || return 1
  fi
  pip_install 4 -e '.[parity]'
}

# set_up EXTRAS: EXTRAS is "" or "test"; "test" brings the parity extra too, where a CPU build of torch is in reach.
set_up() {
  local extras=$1 line stamp wanted
  trap 'printf "\n" >&2; die "interrupted: run the same command again, it goes on where it stopped"' INT TERM
  if ! "$python" -m pip --version >/dev/null 2>&1; then
    check_disk
    make_venv
  fi
  line=$(python_line "$python") || die "$python does not run: remove $venv and run this again"
  [ "$line" -ge 311 ] || die "$venv has Python ${line:0:1}.${line:1} and 3.11 or newer is needed: remove it, or set PIXELIS_VENV"
  constraints=constraints/py312.txt
  if [ "$line" = 311 ]; then constraints=constraints/py311.txt; fi
  torch_version=$(sed -n 's/^torch==//p' "$constraints")
  stamp=$venv/.pixelis-installed-${extras:-run}
  wanted=$("$python" -c 'import hashlib, os, sys
print(hashlib.sha256(b"".join(open(f, "rb").read() for f in sys.argv[1:]) + os.getcwd().encode()).hexdigest())' \
    pyproject.toml "$constraints" launch/setup.sh)
  # what test.sh installed serves local.sh too
  if ! grep -qsx "$wanted" "$stamp" "$venv/.pixelis-installed-test"; then
    check_disk
    drop_half_installed
    say "installing pinned packages into $venv (about 1.4 GB, one to three minutes)"
    if [ -n "$extras" ]; then
      pip_install 62 -e ".[$extras]"
      install_parity
    else
      pip_install 52 -e .
    fi
    printf '%s\n' "$wanted" >"$stamp"
    say "done"
  fi
  trap - INT TERM
  if command -v nvidia-smi >/dev/null 2>&1 && ! "$python" -m pip show -qq jax-cuda13-plugin 2>/dev/null; then
    say "an NVIDIA GPU is here and this environment runs on the CPU: $venv/bin/pip install -c $constraints -e '.[cuda13]' makes it use the GPU"
  fi
}
