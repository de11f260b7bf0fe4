"""Sessions like ONNX Runtime's: the same calls, from any thread."""

from __future__ import annotations

import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tvmtune
from libraries import make_library
from models import tiny_encoder
from tvmtune.errors import TvmtuneError, UsageError
from tvmtune.networks.inputs import random_inputs


@pytest.fixture
def session(tiny_library):
    with tvmtune.InferenceSession(tiny_library) as opened:
        yield opened


def ort(path):
    onnxruntime = pytest.importorskip("onnxruntime")
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return make_library(tiny_encoder(), tmp_path_factory.mktemp("encoder"), threads=1)


@pytest.mark.slow
def test_it_describes_and_computes_a_network_as_onnx_runtime_does(encoder):
    theirs = ort(encoder.with_name("model.onnx"))
    with tvmtune.InferenceSession(encoder) as ours:
        for mine, other in (
            (ours.get_inputs(), theirs.get_inputs()),
            (ours.get_outputs(), theirs.get_outputs()),
        ):
            assert [(a.name, a.shape, a.type) for a in mine] == [
                (a.name, a.shape, a.type) for a in other
            ]
        feed = random_inputs(ours._inputs, 3)
        for names in (None, [], ["pooled"], ["pooled", "hidden"]):
            got, want = ours.run(names, feed), theirs.run(names or None, feed)
            assert len(got) == len(want)
            for y, reference in zip(got, want, strict=True):
                np.testing.assert_allclose(y, reference, atol=1e-4 * np.abs(reference).max())


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("names", "feed", "message"),
    [
        (["scores"], None, "no output 'scores'"),
        ("output", None, "give a list of names"),
        (None, np.zeros((1, 3, 32, 32), "float32"), "a dict of arrays by input name"),
        (None, {}, "lacks data; the network takes data: 1x3x32x32 float32"),
        (None, {"data": [[1.0, 2.0]]}, "'data' is 1x2 float64"),
        (None, {"data": np.zeros((1, 3, 32, 32))}, "'data' is 1x3x32x32 float64"),
    ],
)
def test_what_does_not_fit_is_named(session, names, feed, message):
    good = {"data": np.zeros((1, 3, 32, 32), "float32")}
    with pytest.raises(UsageError, match=message):
        session.run(names, good if feed is None else feed)


def test_calls_of_several_threads_do_not_mix(session):
    feeds = [random_inputs(session._inputs, seed) for seed in range(8)]
    want = [session.run(None, feed)[0] for feed in feeds]
    assert len({y.tobytes() for y in want}) == len(feeds)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            got = list(pool.map(lambda feed: session.run(None, feed)[0], feeds))
            assert all((a == b).all() for a, b in zip(got, want, strict=True))


def test_the_threads_of_the_process_do_not_limit_a_session(tiny_library):
    """Each thread that calls TVM has its own pool, whose size never grows."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two CPUs")
    sizes = []
    for threads in (1, 2):
        with tvmtune.InferenceSession(tiny_library, threads=threads) as opened:
            opened.run(None, random_inputs(opened._inputs))
            sizes.append(opened._library.threads)
    assert sizes == [1, 2]


def test_a_closed_session_says_so_and_leaves_no_thread(tiny_library):
    before = threading.active_count()
    session = tvmtune.InferenceSession(tiny_library)
    assert threading.active_count() == before + 1
    session.close()
    session.close()
    assert threading.active_count() == before
    with pytest.raises(UsageError, match="is closed"):
        session.run(None, {"data": np.zeros((1, 3, 32, 32), "float32")})


def test_a_forgotten_session_ends_its_thread(tiny_library):
    session = tvmtune.InferenceSession(tiny_library)
    (worker,) = session._thread._executor._threads
    del session
    gc.collect()
    worker.join(timeout=60)
    assert not worker.is_alive()


def test_a_file_that_is_no_library_is_refused_without_a_thread_left(tmp_path):
    before = threading.active_count()
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(TvmtuneError):
        tvmtune.InferenceSession(tmp_path / "text.so")
    with pytest.raises(UsageError):
        tvmtune.InferenceSession(tmp_path / "missing.so")
    assert threading.active_count() == before


def test_a_forked_process_gets_an_error_instead_of_waiting_for_ever(session):
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            session.run(None, {"data": np.zeros((1, 3, 32, 32), "float32")})
        except TvmtuneError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as file:
        assert "open it after the fork" in file.read()
