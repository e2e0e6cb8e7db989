// Callbacks from autograd into Rust: for the tensors that it saves for the backward pass, and when the gradient of a parameter is
// complete. PyTorch has both in Python: torch.autograd.graph.saved_tensors_hooks and Tensor.register_post_accumulate_grad_hook.
// Also the memory of a tensor.

#include "shim.hpp"

#include <mutex>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>
#include <torch/csrc/autograd/variable.h>

using namespace shim;

namespace {

// Rust functions. One that fails returns false or null, and writes the reason to `why`, at most `kWhy` bytes.
constexpr size_t kWhy = 4096;
using Pack = bool (*)(const at::Tensor* tensor, void** packed, char* why, size_t capacity);
using Unpack = at::Tensor* (*)(const void* packed, char* why, size_t capacity);
using Call = bool (*)(const void* data, char* why, size_t capacity);
using Free = void (*)(void* data);

struct SavedTensorCalls {
  Pack pack;
  Unpack unpack;
  Free free;
};

// Written once, before `hooked` is set on any thread.
SavedTensorCalls saved_tensor_calls;
thread_local bool hooked = false;

// A saved tensor, or what Rust keeps instead of it.
struct Saved : torch::autograd::SavedVariableHooks {
  Saved() = default;
  Saved(const Saved&) = delete;
  Saved& operator=(const Saved&) = delete;
  ~Saved() override {
    if (packed_) saved_tensor_calls.free(packed_);
  }

  void call_pack_hook(const at::Tensor& tensor) override {
    char why[kWhy] = "";
    TORCH_CHECK(saved_tensor_calls.pack(&tensor, &packed_, why, sizeof why), why);
    if (packed_) return;
    // Not the tensor itself: an output would own the node that owns it. The detached tensor has the same version.
    kept_ = tensor.detach();
    version_ = tensor._version();
  }

  at::Tensor call_unpack_hook() override {
    if (!packed_) {
      // libtorch leaves this check to hooks.
      TORCH_CHECK(kept_._version() == version_, "one of the variables needed for gradient computation has been modified by an ",
                  "inplace operation: a tensor of shape ", kept_.sizes(), " is at version ", kept_._version(), "; expected version ",
                  version_, " instead");
      return kept_;
    }
    char why[kWhy] = "";
    const std::unique_ptr<at::Tensor> tensor{saved_tensor_calls.unpack(packed_, why, sizeof why)};
    TORCH_CHECK(tensor, why);
    return *tensor;
  }

 private:
  void* packed_ = nullptr;
  at::Tensor kept_;
  uint32_t version_ = 0;
};

// libtorch asks its engine for the hooks on tensors that are about to be saved, but only Python's engine has hooks.
struct HookedEngine : torch::autograd::Engine {
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (!hooked) return nullptr;
    return std::make_unique<Saved>();
  }
};

torch::autograd::Engine& hooked_engine() {
  // Never destroyed, so that threads may still use it when the process exits.
  static auto* const engine = new HookedEngine;
  return *engine;
}

struct GradientHook : torch::autograd::PostAccumulateGradHook {
  GradientHook(Call call, Free free, void* data) : call_(call), free_(free), data_(data) {}
  GradientHook(const GradientHook&) = delete;
  GradientHook& operator=(const GradientHook&) = delete;
  ~GradientHook() override { free_(data_); }

  void operator()(const at::Tensor&) override {
    char why[kWhy] = "";
    TORCH_CHECK(call_(data_, why, sizeof why), why);
  }

 private:
  Call call_;
  Free free_;
  void* data_;
};

} // namespace

extern "C" {

// All later calls use these functions.
Status lc_saved_tensors_init(Pack pack, Unpack unpack, Free free) noexcept {
  return guard([&] {
    static std::once_flag once;
    std::call_once(once, [&] {
      saved_tensor_calls = {pack, unpack, free};
      torch::autograd::set_default_engine_stub(hooked_engine);
    });
  });
}

// Sets whether the tensors that this thread's computations save are passed to Rust. Returns the previous setting.
bool lc_saved_tensors_hook(bool on) noexcept {
  const bool before = hooked;
  hooked = on;
  return before;
}

// Takes ownership of `data`, and frees it with `free` also on failure. Replaces an earlier hook.
Status lc_gradient_hook(const at::Tensor* tensor, Call call, Free free, void* data) noexcept {
  return guard([&] {
    auto hook = std::make_unique<GradientHook>(call, free, data);
    TORCH_CHECK_VALUE(tensor->is_leaf() && tensor->requires_grad(), "invalid tensor: only a leaf that requires a gradient has one");
    torch::autograd::impl::set_post_acc_grad_hooks(*tensor, std::move(hook));
  });
}

// Adds to the gradient of a tensor, which may have none.
Status lc_grad_add(const at::Tensor* tensor, const at::Tensor* grad) noexcept {
  return guard([&] {
    at::NoGradGuard no_grad;
    auto& there = tensor->mutable_grad();
    if (there.defined()) there.add_(*grad);
    else there = grad->detach();
  });
}

// `*out` is null for a tensor without its own memory: sparse or undefined.
Status lc_storage_of(const at::Tensor* tensor, StorageHandle** out, uint64_t* id) noexcept {
  return guard([&] {
    *out = tensor->defined() && tensor->has_storage() ? to_storage(*tensor, id) : nullptr;
  });
}

// 0 once the memory is freed.
uint64_t lc_storage_bytes(const StorageHandle* handle) noexcept {
  const auto storage = handle->storage.lock();
  return storage ? storage->nbytes() : 0;
}

void lc_storage_free(StorageHandle* handle) noexcept { delete handle; }

} // extern "C"
