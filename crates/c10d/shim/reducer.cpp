// The DDP reducer, and the few autograd calls of training, with their exception classes preserved.

#include "shim.hpp"

#include <atomic>
#include <thread>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/default_comm_hooks.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

using namespace shim;

namespace {

// Refuses backward passes of other threads on a reducer. The reducer's own hooks on the parameters use a plain pointer
// to it, and neither they nor its other calls expect a second thread; but a tensor of tch may move to another thread
// with its graph. This check is on the same nodes of autograd, runs before those hooks, and lives as long as they do.
// On a CPU backward runs on the calling thread; for a GPU libtorch has its own threads, so nothing can be checked
// there.
struct OnlyThread {
  const std::thread::id thread = std::this_thread::get_id();
  std::atomic<bool> ended{false};
};

struct OnlyThreadHook : torch::autograd::FunctionPreHook {
  explicit OnlyThreadHook(std::shared_ptr<const OnlyThread> only) : only_(std::move(only)) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    TORCH_CHECK_VALUE(only_->ended.load(std::memory_order_acquire) || std::this_thread::get_id() == only_->thread,
                      "backward of a model with a reducer runs on another thread than the reducer's own: run it there");
    return grads;
  }

 private:
  std::shared_ptr<const OnlyThread> only_;
};

struct ReducerHandle {
  std::shared_ptr<c10d::Reducer> reducer;
  std::shared_ptr<OnlyThread> only;

  ~ReducerHandle() {
    reducer.reset(); // takes its hooks off
    only->ended.store(true, std::memory_order_release);
  }
};

std::shared_ptr<OnlyThread> only_this_thread(const std::vector<at::Tensor>& params) {
  auto only = std::make_shared<OnlyThread>();
  for (const auto& param : params)
    if (param.device().is_cpu() && param.requires_grad())
      torch::autograd::impl::grad_accumulator(param)->add_pre_hook(std::make_unique<OnlyThreadHook>(only));
  return only;
}

// Lists of buckets cross the boundary flattened: the lengths of the buckets, then all indices.
std::vector<std::vector<size_t>> unflatten(const size_t* lengths, size_t n, const size_t* indices) {
  std::vector<std::vector<size_t>> buckets;
  buckets.reserve(n);
  for (size_t i = 0; i < n; ++i) {
    buckets.emplace_back(indices, indices + lengths[i]);
    indices += lengths[i];
  }
  return buckets;
}

struct Options {
  int64_t bucket_bytes_cap;
  int64_t first_bucket_bytes_cap;
  bool find_unused_parameters;
  bool gradient_as_bucket_view;
};

} // namespace

extern "C" {

// `bucket_of` receives the number of the bucket of each tensor.
Status lc_bucket_assignment(const at::Tensor* const* tensors, size_t n, const size_t* limits, size_t n_limits,
                            size_t* bucket_of) noexcept {
  return guard([&] {
    const auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(
        to_tensors(tensors, n), std::vector<size_t>(limits, limits + n_limits)));
    for (size_t b = 0; b < buckets.size(); ++b)
      for (size_t index : buckets[b]) bucket_of[index] = b;
  });
}

Status lc_reducer_new(GroupHandle* group, const at::Tensor* const* params, const Bytes* names, size_t n,
                      const size_t* bucket_lengths, size_t n_buckets, const size_t* bucket_indices, const Options* options,
                      ReducerHandle** out) noexcept {
  return guard([&] {
    std::unordered_map<size_t, std::string> param_names;
    for (size_t i = 0; i < n; ++i) param_names[i] = to_string(names[i]);
    const auto tensors = to_tensors(params, n);
    auto reducer = std::make_shared<c10d::Reducer>(
        tensors,
        unflatten(bucket_lengths, n_buckets, bucket_indices),
        group->group,
        /*expect_sparse_gradients=*/std::vector<bool>(n, false),
        options->bucket_bytes_cap,
        options->find_unused_parameters,
        options->gradient_as_bucket_view,
        std::move(param_names),
        options->first_bucket_bytes_cap,
        /*skip_all_reduce_unused_params=*/false,
        /*use_python_reducer=*/false,
        /*bucket_bytes_cap_list=*/std::vector<int64_t>{});
    // The reducer keeps the nodes with the check alive.
    *out = new ReducerHandle{std::move(reducer), only_this_thread(tensors)};
  });
}

void lc_reducer_free(ReducerHandle* reducer) noexcept {
  (void)guard([&] { delete reducer; });
}

Status lc_reducer_prepare_for_forward(ReducerHandle* reducer) noexcept {
  return guard([&] { reducer->reducer->prepare_for_forward(); });
}

Status lc_reducer_rebuild_buckets(ReducerHandle* reducer, bool* rebuilt) noexcept {
  return guard([&] { *rebuilt = reducer->reducer->rebuild_buckets(); });
}

Status lc_reducer_prepare_for_backward(ReducerHandle* reducer, const at::Tensor* const* outputs, size_t n) noexcept {
  return guard([&] { reducer->reducer->prepare_for_backward(to_tensors(outputs, n)); });
}

Status lc_reducer_register_hook(ReducerHandle* reducer, uint8_t hook) noexcept {
  return guard([&] {
    reducer->reducer->register_builtin_comm_hook(static_cast<c10d::BuiltinCommHookType>(hook));
  });
}

// The number of elements in each bucket's flat gradient, in the order of reduction.
Status lc_reducer_bucket_numels(ReducerHandle* reducer, int64_t* numels, size_t capacity, size_t* n) noexcept {
  return guard([&] {
    const auto buckets = reducer->reducer->get_grad_buckets();
    *n = buckets.size();
    for (size_t i = 0; i < buckets.size() && i < capacity; ++i) numels[i] = buckets[i].getBuffer().numel();
  });
}

Status lc_verify_params(GroupHandle* group, const at::Tensor* const* params, size_t n) noexcept {
  return guard([&] { c10d::verify_params_across_processes(group->group, to_tensors(params, n), {}); });
}

Status lc_broadcast_coalesced(GroupHandle* group, const at::Tensor* const* tensors, size_t n, size_t buffer_bytes,
                              int32_t root) noexcept {
  return guard([&] {
    at::NoGradGuard no_grad;
    const auto list = to_tensors(tensors, n);
    c10d::broadcast_coalesced(group->group, list, buffer_bytes, root);
  });
}

// tch's own backward loses the class of the exception; this one keeps it.
Status lc_backward(const at::Tensor* loss) noexcept {
  return guard([&] { torch::autograd::backward({*loss}, {}); });
}

bool lc_grad_enabled() noexcept { return at::GradMode::is_enabled(); }

// Clears the gradient, as zero_grad(set_to_none=True) does. tch has no such call.
Status lc_grad_to_none(const at::Tensor* tensor) noexcept {
  return guard([&] { tensor->mutable_grad() = at::Tensor(); });
}

} // extern "C"
