"""The interpreter ends while threads that nobody waits for are in native code."""

import subprocess
import sys
import textwrap

import pytest

# Programs import `native` by themselves: when they do decides what the end does first.
# A program in which a thread waits for the end, or the end for a thread, without reason
# takes longer than `run` allows.
PREAMBLE = """
import atexit, contextlib, os, sys, threading, time

begun = threading.Event()

def until_the_end_begins(module):
    while not module._ending:
        time.sleep(0.001)

def in_background(work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
"""


def run(program, timeout=60):
    command = [sys.executable, "-c", PREAMBLE + textwrap.dedent(program)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


def test_a_program_may_end_while_lexers_are_made():
    """Cutting a vocabulary into slices takes a while, with nobody waiting for it."""
    done = run(
        """
        import random
        import guided_plugin as gp

        rng = random.Random(1)
        words = {bytes(rng.choices(b"abcdefgh {}:,0123456789", k=rng.randrange(2, 9))) for _ in range(60_000)}
        tokens = [*(bytes([byte]) for byte in range(256)), *sorted(words), b"</s>"]
        vocabulary = gp.Vocabulary.from_tokens(tokens, [len(tokens) - 1])
        config = gp.GuidedConfig(isolate_compiles=False, threads=2)
        pipeline = gp.StepPipeline(gp.GrammarCompiler(vocabulary, config=config), max_slots=8, mode="inline")
        spec = gp.OutputSpec.json_schema({"type": "array", "items": {"type": "string"}})
        for request in range(8):
            pipeline.add_request(str(request), spec)
        """
    )
    assert done.returncode == 0
    assert done.stderr == ""


def test_the_end_waits_for_what_has_begun_and_lets_nothing_begin():
    done = run(
        """
        import guided_plugin.grammar.native as module

        module._LATE = 600.0
        done = threading.Event()

        def work():
            with module.native():
                begun.set()
                until_the_end_begins(module)
                print("one", flush=True)
            done.set()
            with module.native():
                print("two", flush=True)

        # Called after the end has waited: as long as this lasts, threads run.
        atexit.unregister(module._wait)
        atexit.register(time.sleep, 0.2)
        atexit.register(done.wait)
        atexit.register(module._wait)
        in_background(work)
        begun.wait()
        """
    )
    assert done.returncode == 0
    assert done.stdout == "one\n"
    assert done.stderr == ""


def test_work_within_work_is_counted_once_and_begins_at_the_end_too():
    done = run(
        """
        import guided_plugin.grammar.native as module

        module._LONGEST = module._LATE = 600.0

        def work():
            with module.native():
                begun.set()
                until_the_end_begins(module)
                with module.native():
                    print("inner", flush=True)

        in_background(work)
        begun.wait()
        """
    )
    assert done.returncode == 0
    assert done.stdout == "inner\n"


def test_who_waits_for_a_thread_at_the_end_waits_not_for_ever():
    done = run(
        """
        ending = threading.Event()

        @atexit.register
        def join():
            ending.set()
            thread.join()

        from guided_plugin.grammar.native import native

        def work():
            ending.wait()
            with native():
                print("late", flush=True)

        thread = in_background(work)
        """
    )
    assert done.returncode == 0
    assert done.stdout == "late\n"


@pytest.mark.parametrize(
    "where", ["module.native()", "contextlib.nullcontext()", "another_thread()"]
)
def test_a_child_that_is_forked_ends_at_once_wherever_native_work_goes_on(where):
    done = run(
        f"""
        import guided_plugin.grammar.native as module

        module._LONGEST, module._LATE, module._FORK_SECONDS = 600.0, 600.0, 0.1
        reaped = threading.Event()

        def work():
            with module.native():
                begun.set()
                reaped.wait()

        def another_thread():
            in_background(work)
            begun.wait()
            return contextlib.nullcontext()

        with {where}:
            child = os.fork()
        if child == 0:
            with module.native():
                pass
            sys.exit(7)
        _, status = os.waitpid(child, 0)
        reaped.set()
        print(os.waitstatus_to_exitcode(status))
        """
    )
    assert done.returncode == 0
    assert done.stdout == "7\n"
