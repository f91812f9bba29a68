"""Whose code a file is."""

import pytest

from aitop.stacks.origin import application, is_user, origin_of

SCRIPT = "/home/ada/proj/train.py"
BUNDLED = "/home/ada/venv/lib/python3.12/site-packages/aitop/workloads/slow_loader.py"


@pytest.mark.parametrize(
    "file",
    [
        SCRIPT,
        "/home/ada/proj/data/decode.py",
        "/home/ada/shared_lib/augment.py",
        "/mnt/lib/code/model.py",
        "/home/ada/torch/mymodel.py",
        "/tmp/ipykernel_123/456.py",
        "<ipython-input-3-abc>",
        "<python-input-3>",
        "<stdin>",
        "decode.py",
    ],
)
def test_the_users_files(file: str):
    assert is_user(file, SCRIPT)


@pytest.mark.parametrize(
    "file",
    [
        "",
        "<string>",
        "<frozen importlib._bootstrap>",
        "<frozen runpy>",
        "<__array_function__ internals>",
        "<eval_with_key>.3",
        "<aitop hook>",
        "/home/ada/src/aitop/hook/patches.py",
        "/usr/lib/python3.11/multiprocessing/queues.py",
        "/usr/lib64/python3.9/json/decoder.py",
        "/opt/conda/lib/python3.13t/threading.py",
        "/usr/lib/python3/dist-packages/yaml/loader.py",
        "/opt/python311.zip/json/decoder.py",
        "/home/ada/proj/.venv/lib/python3.12/site-packages/PIL/Image.py",
        "/home/ada/proj/.venv/lib/python3.12/site-packages/torch/nn/modules/module.py",
        "/home/eve/pytorch/torch/nn/modules/module.py",
        "/home/eve/pytorch/torch/_tensor.py",
        "/usr/local/bin/torchrun",
        "/home/ada/proj/handle_request",
        "send",
    ],
)
def test_library_files(file: str):
    assert not is_user(file, SCRIPT)


def test_a_script_below_site_packages_is_the_users_with_what_lies_beside_it():
    assert is_user(BUNDLED, BUNDLED)
    assert is_user(BUNDLED.replace("slow_loader", "decode"), BUNDLED)
    assert not is_user("/home/ada/venv/lib/python3.12/site-packages/torch/_tensor.py", BUNDLED)
    assert not is_user("/home/ada/venv/lib/python3.12/site-packages/aitop/hook/ring.py", BUNDLED)
    assert not is_user(BUNDLED, SCRIPT)


@pytest.mark.parametrize(
    "launcher",
    [
        "/home/ada/venv/bin/torchrun",
        "/home/ada/venv/lib/python3.12/site-packages/torch/distributed/run.py",
        "/home/ada/venv/lib/python3.12/site-packages/ipykernel_launcher.py",
        "/usr/lib/python3.12/cProfile.py",
    ],
)
def test_a_launcher_makes_its_neighbours_nobodys(launcher: str):
    assert not is_user("/home/ada/venv/lib/python3.12/site-packages/torch/distributed/elastic/agent.py", launcher)
    assert not is_user("/usr/lib/python3.12/threading.py", launcher)
    assert is_user("/home/ada/proj/model.py", launcher)


def test_code_without_a_script_and_a_script_in_the_root_folder():
    assert is_user("<string>", None) and not is_user("<frozen runpy>", None)
    assert is_user("/train.py", "/train.py")
    assert not is_user("/usr/lib/python3.12/threading.py", "/train.py"), "it does not own the machine"
    assert not is_user("/usr/lib/python3/dist-packages/yaml/loader.py", "/usr/train.py")


SITE = "/venv/lib/python3.11/site-packages"
SERVES = ["/usr/lib/python3.11/multiprocessing/process.py", f"{SITE}/vllm/v1/engine/core.py", f"{SITE}/torch/nn/x.py"]


def test_a_process_without_code_of_the_user_runs_the_package_that_it_entered_first():
    handles = [f"{SITE}/uvicorn/server.py", f"{SITE}/vllm/entrypoints/api.py"]
    assert application([SERVES, SERVES, handles], None) == f"{SITE}/vllm/"
    assert application([SERVES, [f"{SITE}/uvicorn/server.py", "/home/me/app.py"]], None) is None, "a line of the user"
    launcher = [f"{SITE}/torch/distributed/run.py", "/usr/lib/python3.11/subprocess.py"]
    assert application([launcher], None) is None


def test_what_was_installed_elsewhere_is_not_the_users_but_what_lies_beside_the_script_is():
    layer = "/opt/layer/numbers/add.py"
    assert is_user(layer, SCRIPT) and not is_user(layer, SCRIPT, lambda file: "/opt/layer" if file == layer else None)
    assert is_user("/home/ada/proj/data/decode.py", SCRIPT, lambda file: "/home/ada")


def test_origins():
    site = "/home/ada/venv/lib/python3.11/site-packages/"
    assert origin_of("/home/ada/x.py", user=True) == "user"
    assert origin_of(site + "torch/nn/module.py", user=False) == "torch"
    assert origin_of(site + "numpy/core.py", user=False) == "library"
    assert origin_of("/usr/lib/python3.11/queue.py", user=False) == "stdlib"
    assert origin_of("<frozen importlib._bootstrap>", user=False) == "stdlib"
    assert origin_of(site + "numpy/random/mtrand.pyx", user=False) == "native"
