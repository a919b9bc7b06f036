"""What workers say comes out as one clean line."""

import pytest

from ldaf_bench.messages import LONGEST, clean_reason, counted

WORKER = (
    "\x1b[36mray::RayTrainWorker.execute()\x1b[39m (pid=243, ip=10.0.0.3)\n"
    '  File "config.py", line 118, in _setup_torch_process_group\n    dist.init_process_group(\n'
    "RuntimeError: Gloo connectFullMesh failed with [pair.cc:144] no error, remote=[127.0.1.1]:23455"
)


SAID = "RuntimeError: Gloo connectFullMesh failed with [pair.cc:144] no error, remote=[127.0.1.1]:23455"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("simple", "simple"),
        (WORKER, SAID),
        # Quoted once and twice, as a controller passes errors of workers on.
        (repr(WORKER), SAID),
        (f"TrainingFailedError({repr(WORKER)!r})\n", SAID),
        (f"errors: [{{1: {WORKER!r}}}]", SAID),
        ("The actor died.\n\tclass_name: Writer\n\tactor_id: 0a1b", "The actor died."),
        ("bad value (x)\n\n", "bad value (x)"),
        ("", "RuntimeError"),
        ("\n \n", "RuntimeError"),
        ("rings the bell: \x07", "rings the bell: \\x07"),
    ],
)
def test_the_reason_is_one_clean_line(text, said):
    assert clean_reason(RuntimeError(text)) == said


def test_a_long_reason_is_cut():
    assert len(clean_reason(RuntimeError("word " * 1000))) <= LONGEST + 2


def test_one_of_a_thing_and_several():
    assert [counted(number, "network") for number in (0, 1, 2)] == ["0 networks", "1 network", "2 networks"]
    assert counted(3, "call to the store") == "3 calls to the store"
