// DDP's buckets, by libtorch's own reducer, which launches their all-reduces; and the few autograd calls of training, with their
// exception classes preserved.

#include "shim.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/default_comm_hooks.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

using namespace shim;

namespace {

// Refuses backward passes on a reducer from other threads. The reducer's own hooks on the parameters use a plain pointer to
// it, and neither they nor its other calls expect a second thread; but a tch tensor may move to another thread with its
// graph. This check is on the same nodes of autograd, runs before those hooks, and lives as long as they do. On a CPU
// backward runs on the calling thread; for a GPU libtorch has its own threads, so nothing can be checked there.
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

// An all-reduce of a bucket: its number, size, start and end; 0 if it has not ended. Times are nanoseconds of the system's clock.
struct BucketTime {
  int64_t bucket;
  int64_t bytes;
  int64_t started;
  int64_t ended;
};

int64_t now() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

// Written by the training thread, which starts all-reduces, and by the group's threads, which end them.
struct BucketTimes {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::shared_ptr<BucketTime>> list;

  std::shared_ptr<BucketTime> start(int64_t bucket, int64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex);
    list.push_back(std::make_shared<BucketTime>(BucketTime{bucket, bytes, now(), 0}));
    return list.back();
  }

  void end(BucketTime& one) {
    const std::lock_guard<std::mutex> lock(mutex);
    one.ended = now();
    changed.notify_all();
  }

  // A future wakes its waiters before it runs its callbacks, so the last end may be missing for a moment after a backward pass.
  std::vector<BucketTime> take(std::chrono::milliseconds patience) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait_for(lock, patience, [&] {
      return std::all_of(list.begin(), list.end(), [](const auto& one) { return one->ended != 0; });
    });
    std::vector<BucketTime> taken;
    for (const auto& one : list) taken.push_back(*one);
    list.clear();
    return taken;
  }
};

// c10d's all-reduce hook, with its times.
struct TimedAllReduce : c10d::CppCommHookInterface<c10::intrusive_ptr<c10d::ProcessGroup>> {
  TimedAllReduce(const c10::intrusive_ptr<c10d::ProcessGroup>& group, std::shared_ptr<BucketTimes> times)
      : CppCommHookInterface(group), times_(std::move(times)) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    std::vector<at::Tensor> tensors = {bucket.getBufferRef()};
    // Divides first, so no sum overflows.
    tensors[0] /= state_->getSize();
    auto one = times_->start(static_cast<int64_t>(bucket.getIndex()), static_cast<int64_t>(bytes_of(tensors[0])));
    auto future = state_->allreduce(tensors)->getFuture();
    future->addCallback([times = times_, one](c10::ivalue::Future&) { times->end(*one); });
    return future;
  }

 private:
  std::shared_ptr<BucketTimes> times_;
};

struct ReducerHandle {
  std::shared_ptr<c10d::Reducer> reducer;
  std::shared_ptr<OnlyThread> only;
  c10::intrusive_ptr<c10d::Backend> backend; // its memory has the buckets
  bool expects_static_graph; // until its first pass
  bool delays = false; // in the first backward pass of a static graph
  std::shared_ptr<BucketTimes> times = std::make_shared<BucketTimes>();

  ~ReducerHandle() {
    reducer.reset(); // removes its hooks
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
  bool static_graph;
};

std::vector<bool> to_bools(const bool* values, size_t n) { return std::vector<bool>(values, values + n); }

} // namespace

extern "C" {

// `bucket_of` receives the number of the bucket of each tensor. One whose gradient is sparse has a bucket of its own.
Status lc_bucket_assignment(const at::Tensor* const* tensors, const bool* sparse, size_t n, const size_t* limits, size_t n_limits,
                            size_t* bucket_of) noexcept {
  return guard([&] {
    const auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(
        to_tensors(tensors, n), std::vector<size_t>(limits, limits + n_limits), to_bools(sparse, n)));
    for (size_t b = 0; b < buckets.size(); ++b)
      for (size_t index : buckets[b]) bucket_of[index] = b;
  });
}

Status lc_reducer_new(GroupHandle* group, const at::Tensor* const* params, const Bytes* names, const bool* sparse, size_t n,
                      const size_t* bucket_lengths, size_t n_buckets, const size_t* bucket_indices, const Options* options,
                      ReducerHandle** out) noexcept {
  return guard([&] {
    std::unordered_map<size_t, std::string> param_names;
    for (size_t i = 0; i < n; ++i) param_names[i] = to_string(names[i]);
    const auto tensors = to_tensors(params, n);
    const BucketsIn buckets(group->backend);
    auto reducer = std::make_shared<c10d::Reducer>(
        tensors,
        unflatten(bucket_lengths, n_buckets, bucket_indices),
        group->group,
        to_bools(sparse, n),
        options->bucket_bytes_cap,
        options->find_unused_parameters,
        options->gradient_as_bucket_view,
        std::move(param_names),
        options->first_bucket_bytes_cap,
        /*skip_all_reduce_unused_params=*/false,
        /*use_python_reducer=*/false,
        /*bucket_bytes_cap_list=*/std::vector<int64_t>{});
    // The reducer keeps the nodes with the check alive.
    auto only = only_this_thread(tensors);
    *out = new ReducerHandle{std::move(reducer), std::move(only), group->backend, options->static_graph};
  });
}

void lc_reducer_free(ReducerHandle* reducer) noexcept {
  (void)guard([&] { delete reducer; });
}

Status lc_reducer_prepare_for_forward(ReducerHandle* reducer) noexcept {
  return guard([&] {
    // Not earlier: the reducer would also count the gradients of passes that reduce nothing.
    reducer->delays = std::exchange(reducer->expects_static_graph, false);
    if (reducer->delays) reducer->reducer->set_static_graph();
    reducer->reducer->prepare_for_forward();
  });
}

Status lc_reducer_rebuild_buckets(ReducerHandle* reducer, bool* rebuilt) noexcept {
  return guard([&] {
    const BucketsIn buckets(reducer->backend);
    *rebuilt = reducer->reducer->rebuild_buckets();
  });
}

Status lc_reducer_prepare_for_backward(ReducerHandle* reducer, const at::Tensor* const* outputs, size_t n) noexcept {
  return guard([&] { reducer->reducer->prepare_for_backward(to_tensors(outputs, n)); });
}

// In the first pass of a static graph, the reducer only counts how often each gradient arrives, and reduces all gradients
// afterwards. Python's DDP does the same in a callback of autograd.
Status lc_reducer_backward(ReducerHandle* reducer, const at::Tensor* loss) noexcept {
  return guard([&] {
    torch::autograd::backward({*loss}, {});
    if (std::exchange(reducer->delays, false)) reducer->reducer->delay_all_reduce();
  });
}

Status lc_reducer_register_hook(ReducerHandle* reducer, uint8_t hook) noexcept {
  return guard([&] {
    reducer->reducer->register_builtin_comm_hook(static_cast<c10d::BuiltinCommHookType>(hook));
  });
}

Status lc_reducer_time_buckets(ReducerHandle* reducer, GroupHandle* group) noexcept {
  return guard([&] {
    reducer->reducer->register_comm_hook(std::make_unique<TimedAllReduce>(group->group, reducer->times));
  });
}

// Moves the times since the last call to `times`. If there are more than `capacity`, only sets `n` to their number.
Status lc_reducer_take_bucket_times(ReducerHandle* reducer, int64_t patience_ms, BucketTime* times, size_t capacity,
                                    size_t* n) noexcept {
  return guard([&] {
    {
      const std::lock_guard<std::mutex> lock(reducer->times->mutex);
      *n = reducer->times->list.size();
      if (*n > capacity) return;
    }
    const auto taken = reducer->times->take(std::chrono::milliseconds(patience_ms));
    std::copy(taken.begin(), taken.end(), times);
  });
}

// The number of elements in each bucket's gradients, in the order of reduction.
Status lc_reducer_bucket_numels(ReducerHandle* reducer, int64_t* numels, size_t capacity, size_t* n) noexcept {
  return guard([&] {
    const auto buckets = reducer->reducer->get_grad_buckets(/*return_zero_tensors=*/false);
    *n = buckets.size();
    for (size_t i = 0; i < buckets.size() && i < capacity; ++i) {
      numels[i] = 0;
      for (const auto& param : buckets[i].getParameters()) numels[i] += param.numel();
    }
  });
}

// The memory of a bucket's flat gradient; null if there is no bucket with this number. Sparse gradients have no such bucket and
// are not counted.
Status lc_reducer_bucket_storage(ReducerHandle* reducer, size_t bucket, StorageHandle** out, uint64_t* id) noexcept {
  return guard([&] {
    *out = nullptr;
    for (const auto& one : reducer->reducer->get_grad_buckets(/*return_zero_tensors=*/false)) {
      const auto& buffer = one.getBuffer();
      if (!buffer.defined() || !buffer.has_storage()) continue;
      if (bucket-- == 0) return void(*out = to_storage(buffer, id));
    }
  });
}

Status lc_verify_params(GroupHandle* group, const at::Tensor* const* params, size_t n) noexcept {
  return guard([&] {
    const CallerWaits hint;
    c10d::verify_params_across_processes(group->group, to_tensors(params, n), {});
  });
}

Status lc_broadcast_coalesced(GroupHandle* group, const at::Tensor* const* tensors, size_t n, size_t buffer_bytes,
                              int32_t root) noexcept {
  return guard([&] {
    at::NoGradGuard no_grad;
    const CallerWaits hint;
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
