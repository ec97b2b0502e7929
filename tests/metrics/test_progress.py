import io

from pixelis_jax.metrics.progress import Progress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_plain_lines_every_few_seconds_with_an_eta() -> None:
    clock, out = Clock(), io.StringIO()
    with Progress(10, label="rft", interval_s=5, file=out, clock=clock) as progress:
        for _ in range(10):
            clock.now += 2
            progress.update(1, {"success_rate": 0.25})
    lines = out.getvalue().splitlines()
    assert lines[0] == "rft: 1/10 (10 %), 2 s, ETA 18 s: success_rate 0.25"
    assert lines[-1].startswith("rft: 10/10 (100 %), 20 s, ETA 0 s")
    assert 4 <= len(lines) <= 6


def test_the_eta_of_a_resumed_job_counts_only_its_own_steps() -> None:
    clock = Clock()
    progress = Progress(100, label="rft", initial=90, file=io.StringIO(), clock=clock)
    assert progress.line().endswith("ETA ?")
    clock.now = 4.0
    progress.update(2)
    assert progress.line() == "92/100 (92 %), 4 s, ETA 16 s"


def test_what_can_not_be_measured_is_a_dash() -> None:
    out = io.StringIO()
    Progress(2, label="rft", file=out, clock=Clock()).update(1, {"reward": float("nan"), "kl": 0.0})
    assert out.getvalue().rstrip().endswith(": reward -, kl 0")


def test_a_terminal_gets_a_bar() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    with Progress(2, label="sft", file=out) as progress:
        progress.say("note")
        progress.update(2, {"loss": 0.5})
    assert "note\n" in out.getvalue() and "2/2" in out.getvalue()
