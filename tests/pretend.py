"""A device that is not there: its tensors say that they are on `gpu` and compute on the CPU, and what would fail between a GPU and the CPU fails here.

`python tests/pretend.py teran-mrsw cgam:bert` trains each row (and text encoder) on the CPU and on the pretended device, and asks the first model on both; losses and answers are compared.
It stands for no GPU's speed, kernels or half precisions: it only finds tensors that are in the wrong place.
"""
import sys, tempfile
from contextlib import contextmanager, nullcontext

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

COPIES = ("_to_copy","copy_")
INDEXING = ("index","index_put_","index_put","_index_put_impl_","_unsafe_index") # a GPU's tensors may be indexed by those of the CPU


class Backend(_DummyBackendModule):
    "What torch asks of a device's module."
    def get_amp_supported_dtype(self): return [torch.bfloat16, torch.float16]
    def get_rng_state(self, *device): return torch.get_rng_state()
    def set_rng_state(self, state, *device): torch.set_rng_state(state)
    def device(self, device): return nullcontext()

_setup_privateuseone_for_python_backend("gpu", backend_module=Backend())
GPU = torch.device("gpu", 0)


class Pretended(torch.Tensor):
    "A tensor of the CPU that says it is on the device."
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype, device=GPU)
    def __init__(self, inner): self.inner = inner
    def __repr__(self): return f"Pretended({self.inner!r})"
    def tolist(self): return self.inner.tolist()
    def numpy(self, *args, **kwargs): raise TypeError("can't convert a tensor of the pretended device to numpy; use Tensor.cpu() first")
    __array__ = numpy
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None): return run(func, args, kwargs or {})

class Pretending(TorchDispatchMode):
    "Tensors that are made for the device, or moved there, are pretended."
    def __torch_dispatch__(self, func, types, args=(), kwargs=None): return run(func, args, kwargs or {})

def inner(x): return x.inner if isinstance(x, Pretended) else x

def run(func, args, kwargs):
    "One operation on the CPU, refused where a GPU would refuse it."
    name,tensors = func.overloadpacket.__name__,[t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    ours,theirs = [t for t in tensors if isinstance(t, Pretended)],[t for t in tensors if not isinstance(t, Pretended) and t.dim()]
    indexed = name in INDEXING and isinstance(args[0], Pretended) and not (len(args) > 2 and any(args[2] is t for t in theirs))
    if ours and theirs and not indexed and name not in COPIES:
        raise RuntimeError(f"expected all tensors to be on the same device: {func} has {[tuple(t.shape) for t in theirs]} on the CPU")
    here = torch.device(kwargs["device"]).type == GPU.type if kwargs.get("device") is not None else isinstance(args[0], Pretended) if name in ("copy_",*INDEXING) else bool(ours)
    a,k = tree_map(inner, args),tree_map(inner, kwargs)
    if k.get("device") is not None: k["device"] = torch.device("cpu")
    with _disable_current_modes(): out = func(*a, **k)
    if isinstance(out, torch.Tensor) and out is a[0]: return args[0] # in place
    if kwargs.get("out") is not None: return kwargs["out"]
    return tree_map(lambda o: Pretended(o) if here and isinstance(o, torch.Tensor) else o, out)


def register():
    "The few operations that torch does not ask Python about."
    def empty(size, stride=None, dtype=None, **kwargs):
        with _disable_current_modes(): return Pretended(torch.empty(size, dtype=dtype) if stride is None else torch.empty_strided(size, stride, dtype=dtype))
    def copy_from(source, to, non_blocking=False):
        with _disable_current_modes(): inner(to).copy_(inner(source))
        return to
    libraries = torch.library.Library("_", "IMPL"),torch.library.Library("aten", "IMPL")
    libraries[0].fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for op,f in (("empty_strided",empty),("empty.memory_format",empty),("_copy_from",copy_from)): libraries[1].impl(op, f, "PrivateUse1")
    return libraries # which unregister themselves when nobody holds them

@contextmanager
def device():
    "Everything of teran_nb that chooses a device chooses the pretended one."
    from unittest.mock import patch
    from accelerate.state import AcceleratorState, PartialState
    import accelerate
    from teran_nb.model import saving
    accelerator,save_tensors,save = accelerate.Accelerator,saving.save_tensors,torch.save
    def moved(*args, cpu=True, **kwargs):
        made = accelerator(*args, cpu=True, **kwargs)
        for state in (PartialState,AcceleratorState): state._shared_state["device"] = GPU
        return made
    def home(x): return tree_map(lambda t: t.detach().cpu() if isinstance(t, Pretended) else t, x) # a real GPU's tensors save themselves
    torch.__future__.set_swap_module_params_on_conversion(True)
    chosen = [patch(f"teran_nb.training.{module}.pick_device", lambda *name: GPU) for module in ("learner","runs","parameters")]
    with (chosen[0], chosen[1], chosen[2], patch("accelerate.Accelerator", moved), patch("torch.inference_mode", torch.no_grad),
          patch("teran_nb.model.saving.save_tensors", lambda d, *a, **k: save_tensors(home(d), *a, **k)),
          patch("torch.save", lambda o, *a, **k: save(home(o), *a, **k)), Pretending()): yield

def trained(row, text, output):
    "A tiny run's folder and the loss of its first epoch."
    from teran_nb.training.datasets import load_data
    from teran_nb.training.recipe import recipe
    from teran_nb.training.runs import run_folder, train
    world = load_data("scenes:tiny")
    todo = recipe(row, "tiny", text=text or None)
    run = train(todo, world, run_folder(output, todo.run_name()))
    return run.folder,run.history.epochs[0]["loss"]

def asked(folder):
    "What a trained model says: the similarity of every pair, an alignment, relations, what a sentence finds; and its device."
    from teran_nb.look.finder import Finder
    from teran_nb.model.single_stream import word_relations
    from teran_nb.training.datasets import load_data
    from teran_nb.training.runs import evaluate_runs
    world = load_data("scenes:tiny").test
    result = evaluate_runs(folder, world)
    model = result.model
    image = world[0]
    said = [result.sim, model.align(image, image.captions[0]).cosines]
    if "joint" in model.config.training_heads: said += [word_relations(model, image, image.captions[0]).words]
    finder = Finder(model, world)
    finder.ask(image.captions[0])
    return [*said, finder.hits[finder.shown[0]].scores],model.device

if __name__ == "__main__":
    held = register()
    for name in sys.argv[1:]:
        row,_,text = name.partition(":")
        with tempfile.TemporaryDirectory() as output:
            folder,loss = trained(row, text, f"{output}/cpu")
            want,_ = asked(folder)
            with device(): (_,other),(got,where) = trained(row, text, f"{output}/gpu"),asked(folder)
        assert where == GPU, where
        assert abs(other/loss - 1) < 1e-3, (loss,other) # of many steps: sums are made in another order
        for a,b in zip(want, got, strict=True): torch.testing.assert_close(torch.as_tensor(b), torch.as_tensor(a), rtol=1e-4, atol=1e-4)
        print(f"{name}: loss {loss:.4f} on the CPU, {other:.4f} on {where.type}; {len(got)} answers of one model alike", flush=True)
