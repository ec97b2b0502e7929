import subprocess
import sys

import pytest

from pixelis_jax.cota import __main__ as cota_command


def ending(arguments, capsys):
    """(exit code, stdout, stderr) of a command line that the parser ends."""
    with pytest.raises(SystemExit) as ended:
        cota_command.main(arguments)
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def test_help_lists_the_commands_with_examples(capsys):
    code, out, _ = ending(["--help"], capsys)
    assert code == 0
    for name, (_, about) in cota_command.COMMANDS.items():
        assert f"{name:8}  {about}\n" in out and f"python -m pixelis_jax.cota {name} --" in out


@pytest.mark.parametrize("name", cota_command.COMMANDS)
def test_each_command_has_its_own_help(name, capsys):
    code, out, _ = ending([name, "--help"], capsys)
    assert code == 0 and f"python -m pixelis_jax.cota {name}" in out and "--out" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name the command first: generate, score, import"),
        (["frobnicate"], "there is no command 'frobnicate'; commands are generate, score, import"),
        (["a\nb" * 99, "--out=x"], "there is no command"),
        (["--out=x"], "unrecognized arguments: --out=x"),
        (["score"], "required: --input, --out"),
        (["score", "--input=x", "--out=y", "--frob"], "unrecognized arguments: --frob"),
        (["score", "--input=x", "--out=y", "--stri"], "unrecognized arguments: --stri"),
        (["score", "--input=x", "--out=y", "more\nlines"], "unrecognized arguments: more lines"),
        (["score", "--input=", "--out=y"], "--input: is empty"),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments, words, capsys):
    code, out, err = ending(arguments, capsys)
    assert code == 2 and out == "" and words in err and err.count("\n") == 1 and len(err) < 300
    assert err.startswith("pixelis_jax.cota")


def test_a_command_whose_module_is_missing(monkeypatch, capsys):
    monkeypatch.setitem(cota_command.COMMANDS, "paint", ("pixelis_jax.cota.paint", "paint"))
    code, _, err = ending(["paint", "--out=x"], capsys)
    assert code == 2 and err.startswith("pixelis_jax.cota paint: this installation has no such command")


@pytest.mark.parametrize("arguments", [["--help"], ["score", "--help"]])
def test_help_loads_nothing_heavy(arguments):
    program = f"""
import sys
from pixelis_jax.cota.__main__ import main
try:
    main({arguments!r})
except SystemExit as ended:
    assert ended.code == 0
heavy = {{"jax", "numpy", "matplotlib", "PIL", "pixelis_jax.cota.generate"}} & set(sys.modules)
sys.exit(str(heavy) if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
