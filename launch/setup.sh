# shellcheck shell=bash
# Shared set-up of launch/*.sh, to be sourced from the repository's root: a virtual environment with pinned packages.
# Safe to repeat (a stamp skips what is done) and to interrupt (the stamp is written last; half-installed packages are redone).
#
# PIXELIS_PYTHON  the Python to use (default: the first of python3, python3.13, python3.12, python3.11 that is new enough)
# PIXELIS_VENV    the folder of the virtual environment (default: .venv); a relative one starts at the caller's folder, $caller

venv=${PIXELIS_VENV:-.venv}
case ${PIXELIS_VENV:-/} in
  /*) ;;
  *) venv=${caller:-$PWD}/$venv ;;
esac
python=$venv/bin/python
need_mb=3072

say() { printf '[setup] %s\n' "$*" >&2; }
die() {
  printf '[setup] error: %s\n' "$*" >&2
  exit 1
}

# python_line PYTHON: prints 311, 312, ... and fails where it does not run.
python_line() { "$1" -c 'import sys; print(sys.version_info[0] * 100 + sys.version_info[1])' 2>/dev/null; }

# dotted LINE: 309 as 3.9
dotted() { printf '%d.%d' $(($1 / 100)) $(($1 % 100)); }

# The first Python that was tested, else the first newer one.
find_python() {
  local candidate line seen="" newer="" candidates=(python3 python3.13 python3.12 python3.11)
  case ${PIXELIS_PYTHON:-} in
    "") ;;
    [!/]*/*) candidates=("${caller:-$PWD}/$PIXELIS_PYTHON") ;;
    *) candidates=("$PIXELIS_PYTHON") ;;
  esac
  for candidate in "${candidates[@]}"; do
    line=$(python_line "$candidate") || continue
    if [ "$line" -gt 313 ]; then
      newer=${newer:-$candidate}
    elif [ "$line" -ge 311 ]; then
      printf '%s\n' "$candidate"
      return 0
    else
      seen="$seen $candidate is Python $(dotted "$line");"
    fi
  done
  if [ -n "$newer" ]; then
    say "$newer is newer than what was tested (Python 3.11 to 3.13); trying"
    printf '%s\n' "$newer"
    return 0
  fi
  die "Python 3.11 or newer is needed:${seen:- none of ${candidates[*]} runs;} install one (Debian, Ubuntu: apt-get install python3 python3-venv) or name it: PIXELIS_PYTHON=/path/to/python3.12 $0"
}

# free_mb: what the disk of the environment has left; the environment's folder need not exist yet.
free_mb() {
  local folder=$venv
  until [ -d "$folder" ]; do folder=$(dirname "$folder"); done
  df -Pm "$folder" | sed -nE 's/.* ([0-9]+) +[0-9]+% .*/\1/p'
}

check_disk() {
  local free
  free=$(free_mb) || free=""
  [ "${free:-$need_mb}" -ge "$need_mb" ] || die "the disk is too full: $venv needs $need_mb MB and $free MB are free; free some space, or set PIXELIS_VENV to a folder on another disk"
}

make_venv() {
  local base
  check_disk
  if [ -e "$venv" ] && [ ! -e "$venv/pyvenv.cfg" ] && [ -n "$(ls -A "$venv")" ]; then
    die "$venv exists and is no virtual environment: move it away, or set PIXELIS_VENV to another folder"
  fi
  base=$(find_python) || exit 1
  "$base" -c 'import venv, ensurepip' 2>/dev/null ||
    die "$base has no venv module: install it (Debian, Ubuntu: apt-get install python3-venv), then run this again"
  say "making the virtual environment $venv with $("$base" -V)"
  mkdir -p "$venv" || die "$venv cannot be made: set PIXELIS_VENV to a folder that you may write"
  "$base" -m venv --clear "$venv" || die "$base could not make $venv: see the message above"
}

# ready_venv: an environment whose Python runs, is the one it was made with, and has pip; made or mended where it is not so.
ready_venv() {
  local line made
  if ! line=$(python_line "$python"); then
    [ ! -e "$venv/pyvenv.cfg" ] || say "the Python of $venv does not run (removed or replaced?): making $venv anew"
    make_venv
    return
  fi
  made=$(awk -F '[ =.]+' '/^version(_info)? *=/ { print $2 * 100 + $3; exit }' "$venv/pyvenv.cfg" 2>/dev/null) || made=""
  if [ "${made:-$line}" != "$line" ]; then
    say "$venv was made with Python $(dotted "$made") and has $(dotted "$line") now: making it anew"
    make_venv
  elif ! "$python" -m pip --version >/dev/null 2>&1; then
    say "$venv has no pip: adding it"
    if ! "$python" -m ensurepip --upgrade >/dev/null 2>&1 || ! "$python" -m pip --version >/dev/null 2>&1; then
      make_venv
    fi
  fi
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
  local total=$1 count=0 line name start=$SECONDS left tty=0 retried=0
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
      "WARNING: Retrying"*)
        [ "$retried" = 1 ] || say "the package index does not answer; pip tries again (up to some minutes)"
        retried=1
        ;;
      "Installing collected packages"*)
        [ "$tty" = 0 ] || printf '\n' >&2
        say "unpacking $count packages (20 to 90 s)"
        ;;
    esac
  done
  return 0
}

# explain_failure: ends the script with what pip missed. A full disk may have kept pip.log from saying so.
explain_failure() {
  local log=$venv/pip.log free
  free=$(free_mb) || free=""
  grep -aE '^ *(ERROR|error|WARNING: Retrying)' "$log" | tail -n 5 >&2 || true
  if [ "${free:-$need_mb}" -lt 20 ] || grep -qaE 'No space left on device|Disk quota exceeded' "$log"; then
    die "the disk is full (that of $venv, or of ${TMPDIR:-/tmp}, which TMPDIR names): free $need_mb MB, then run this again (it goes on where it stopped)"
  elif grep -qaE 'CERTIFICATE_VERIFY_FAILED|SSLError' "$log"; then
    die "pip does not trust its package index's certificate (a proxy?): PIP_CERT names the right certificates; then run this again"
  elif grep -qaE 'Connection ?Error|Connection(Timeout|Reset)|NameResolutionError|ConnectTimeout|ConnectionPool|Failed to establish|name resolution|Connection refused|Network is unreachable|ProxyError|[Rr]ead timed out|IncompleteRead' "$log"; then
    die "pip could not reach its package index (no network, or a proxy is needed): check the connection, then run this again"
  elif grep -qaE 'Permission denied' "$log"; then
    die "pip may not write where it must (see above): make $venv yours, or set PIXELIS_VENV to another folder"
  elif grep -qaE 'No matching distribution found' "$log"; then
    die "the package index that pip uses lacks a pinned package (see above; a mirror may lag behind): PIP_INDEX_URL names another; all of pip's output is in $log"
  fi
  die "pip failed (see above); its whole output is in $log"
}

# pip_install TOTAL ARGUMENTS...
pip_install() {
  local total=$1
  shift
  : >"$venv/pip.log" || die "$venv cannot be written: make it yours and the disk less full, or set PIXELIS_VENV to another folder"
  # as a condition, because a failing pipeline would otherwise end the script (set -e, pipefail) without a word
  if ! "$python" -m pip install --progress-bar off --disable-pip-version-check --no-input -c "$constraints" "$@" 2>&1 |
    show_progress "$total"; then
    explain_failure
  fi
}

# cpu_torch: prints the torch that comes without CUDA, nothing where pip finds none. On Linux only a version that ends in
# +cpu is sure to be one: the plain one of the default index brings several GB of CUDA.
cpu_torch() {
  local versions
  if [ "$(uname -s)" != Linux ]; then
    printf 'torch==%s\n' "$torch_version"
    return 0
  fi
  versions=$("$python" -m pip index versions --disable-pip-version-check torch 2>/dev/null) || return 0
  case $versions, in
    *" $torch_version+cpu"[,$'\n']*) printf 'torch==%s+cpu\n' "$torch_version" ;;
  esac
}

installed_torch() {
  "$python" -c 'import importlib.metadata as m; print(m.version("torch").split("+")[0])' 2>/dev/null || true
}

install_parity() {
  local wanted
  if [ "$(installed_torch)" != "$torch_version" ]; then
    wanted=$(cpu_torch)
    [ -n "$wanted" ] || return 0
    say "installing $wanted for the live parity tests"
    pip_install 8 "$wanted"
  fi
  pip_install 4 -e '.[parity]'
}

# set_up EXTRAS: EXTRAS is "" or "test"; "test" brings the parity extra too, where a CPU build of torch is in reach.
set_up() {
  local extras=$1 line stamp wanted
  trap 'printf "\n" >&2; die "interrupted: run the same command again, it goes on where it stopped"' INT TERM
  ready_venv
  line=$(python_line "$python") || die "$python does not run: remove $venv and run this again"
  [ "$line" -ge 311 ] || die "$venv has Python $(dotted "$line") and 3.11 or newer is needed: remove it, or set PIXELIS_VENV"
  constraints=constraints/py312.txt
  if [ "$line" = 311 ]; then constraints=constraints/py311.txt; fi
  torch_version=$(sed -n 's/^torch==//p' "$constraints")
  stamp=$venv/.pixelis-installed-${extras:-run}
  wanted=$("$python" -c 'import hashlib, os, sys
print(hashlib.sha256(b"".join(open(f, "rb").read() for f in sys.argv[1:]) + os.fsencode(os.getcwd())).hexdigest())' \
    pyproject.toml "$constraints" launch/setup.sh)
  # what test.sh installed serves local.sh too
  if ! grep -qsx "$wanted" "$stamp" "$venv/.pixelis-installed-test"; then
    check_disk
    drop_half_installed
    say "installing pinned packages into $venv (about 1.8 GB, one to three minutes)"
    if [ -n "$extras" ]; then
      pip_install 117 -e ".[$extras,tools]"
      install_parity
    else
      pip_install 92 -e ".[tools]"
    fi
    printf '%s\n' "$wanted" >"$stamp"
    say "done"
  fi
  if [ "$extras" = test ] && [ "$(installed_torch)" != "$torch_version" ]; then
    say "pip found no CPU build of torch $torch_version: live parity tests are skipped, golden ones run (README, Parity, says how to add it)"
  fi
  trap - INT TERM
  if command -v nvidia-smi >/dev/null 2>&1 && ! "$python" -m pip show -qq jax-cuda13-plugin 2>/dev/null; then
    say "an NVIDIA GPU is here and this environment runs on the CPU: $venv/bin/pip install -c $constraints -e '.[cuda13]' makes it use the GPU"
  fi
}
