// Process groups on Gloo or any backend handle (NCCL's is in nccl.cpp), their collectives and point-to-point messages,
// and work handles.

#include "shim.hpp"

#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupWrapper.hpp>

#include <pthread.h>

using namespace shim;
using c10d::ProcessGroup;
using c10d::ProcessGroupGloo;

namespace {

// Names this thread while it starts threads without their own names, which inherit its name.
class ThreadName {
 public:
  explicit ThreadName(const char* name) : known_(pthread_getname_np(pthread_self(), before_, sizeof(before_)) == 0) {
    if (known_) pthread_setname_np(pthread_self(), name);
  }
  ~ThreadName() {
    if (known_) pthread_setname_np(pthread_self(), before_);
  }
  ThreadName(const ThreadName&) = delete;
  ThreadName& operator=(const ThreadName&) = delete;

 private:
  char before_[16] = {};
  bool known_;
};

c10::intrusive_ptr<ProcessGroupGloo::Options> gloo_options(const MemberConfig& config, Bytes interface, Bytes host) {
  const ThreadName named("gloo transport"); // lockstep_contract::background
  const auto timeout = std::chrono::milliseconds(config.timeout_ms);
  if (interface.size == 0 && host.size == 0) return ProcessGroupGloo::Options::create_default(timeout);
  auto options = ProcessGroupGloo::Options::create(timeout);
  const bool lazy = c10d::getDefaultGlooLazyInit();
  options->devices.push_back(
      interface.size != 0 ? ProcessGroupGloo::createDeviceForInterface(to_string(interface), lazy)
                          : ProcessGroupGloo::createDeviceForHostname(to_string(host), lazy));
  return options;
}

// A message of a batch.
struct Message {
  const at::Tensor* tensor;
  int32_t peer;
  int32_t tag;
  bool sends;
};

// Runs a collective and returns its work handle.
template <class F>
Status start(WorkHandle** out, F&& launch) noexcept {
  return guard([&] {
    auto work = launch();
    TORCH_CHECK(work, "the backend returned no work handle");
    *out = new WorkHandle{std::move(work)};
  });
}

} // namespace

extern "C" {

// libtorch looks for its CUDA libraries only once, at the first call of this kind: see getCUDAHooks.
bool lc_cuda_is_hooked() noexcept {
  bool hooked = false;
  (void)guard([&] { hooked = at::detail::getCUDAHooks().hasCUDART(); });
  return hooked;
}

// ---- creating groups

Status lc_backend_gloo(const MemberConfig* config, Bytes interface, Bytes host, BackendHandle** out) noexcept {
  return guard([&] {
    auto options = gloo_options(*config, interface, host);
    options->group_name = to_string(config->group_name);
    options->global_ranks_in_group = config->members();
    auto gloo = c10::make_intrusive<ProcessGroupGloo>(config->store->store, config->rank, config->size, options);
    gloo->setSequenceNumberForGroup();
    *out = new BackendHandle{gloo, ProcessGroup::BackendType::GLOO, {}, {}, {}, {}};
  });
}

// Wraps a backend as torch.distributed does with TORCH_DISTRIBUTED_DEBUG=DETAIL, with the same store prefix: before
// each collective the ranks compare their calls over an additional Gloo group.
Status lc_backend_compare_calls(BackendHandle* backend, const MemberConfig* config, Bytes interface, Bytes host) noexcept {
  return guard([&] {
    auto store = c10::make_intrusive<c10d::PrefixStore>("pg_wrapper:" + to_string(config->group_name), config->store->store);
    auto helper = c10::make_intrusive<ProcessGroupGloo>(
        store, config->rank, config->size, gloo_options(*config, interface, host));
    const auto& called = backend->wrapper ? backend->wrapper : backend->backend;
    backend->wrapper = c10::make_intrusive<c10d::ProcessGroupWrapper>(called, helper);
  });
}

void lc_backend_free(BackendHandle* backend) noexcept {
  (void)guard([&] { delete backend; });
}

// `store` is the group's store; the backends' stores are below it. `cpu` and `cuda` carry tensors on these devices: null if the
// group takes no such tensors, the same handle if one backend takes both. The default is chosen as in Python
// (_new_process_group_helper): NCCL if there is one.
Status lc_group_new(const StoreHandle* store, const MemberConfig* config, const BackendHandle* cpu, const BackendHandle* cuda,
                    GroupHandle** out) noexcept {
  return guard([&] {
    TORCH_CHECK(cpu || cuda, "a group needs a backend");
    const bool is_nccl = cuda && cuda->type == ProcessGroup::BackendType::NCCL;
    const auto* main = is_nccl || !cpu ? cuda : cpu;
    auto group = c10::make_intrusive<ProcessGroup>(store->store, config->rank, config->size);
    group->setDefaultBackend(main->type);
    group->setBoundDeviceId(main->bound);
    const auto add = [&](c10::DeviceType device, const BackendHandle* backend) {
      if (backend) group->setBackend(device, backend->type, backend->wrapper ? backend->wrapper : backend->backend);
    };
    add(c10::DeviceType::CPU, cpu);
    add(c10::DeviceType::CUDA, cuda);
    group->setGroupName(to_string(config->group_name));
    const auto device = main == cpu ? c10::DeviceType::CPU : c10::DeviceType::CUDA;
    const auto* other = main == cpu ? cuda : cpu;
    if (other == main) other = nullptr;
    const auto guarded = [](const BackendHandle* backend) { return backend->guarded ? backend->guarded : backend->backend; };
    *out = new GroupHandle{std::move(group), main->backend, device, main->traffic, {}, {guarded(main)}};
    if (!other) return;
    (*out)->other = other->backend;
    (*out)->guarded.push_back(guarded(other));
  });
}

// Returns false if the group's backend does not count operations.
bool lc_group_traffic(const GroupHandle* group, uint64_t* calls, uint64_t* bytes) noexcept {
  if (!group->traffic) return false;
  *calls = group->traffic->calls.load(std::memory_order_relaxed);
  *bytes = group->traffic->bytes.load(std::memory_order_relaxed);
  return true;
}

// Nanoseconds since the last call of an operation; negative if the group's backend does not count operations.
int64_t lc_group_since_last_call(const GroupHandle* group) noexcept {
  return group->traffic ? group->traffic->since_last() : -1;
}

// Waits for operations in progress if the backend requires it, unless the caller abandons them. ProcessGroupWrapper does not
// forward these calls, so they go to the backend itself.
//
// Gloo cannot abort: its destructor waits for all operations in progress.
void lc_group_free(GroupHandle* group, bool give_up) noexcept {
  for (auto* backend : {&group->backend, &group->other})
    if (*backend) (void)guard([&] { give_up ? (*backend)->abort() : (*backend)->shutdown(); });
  (void)guard([&] { delete group; });
}

// Ends all operations of this rank, and as a result those of its peers. May be called by any thread while the group lives.
Status lc_group_abort(const GroupHandle* group) noexcept {
  return guard([&] {
    std::exception_ptr failure;
    for (const auto& backend : group->guarded) {
      try {
        backend->abort();
      } catch (...) {
        failure = std::current_exception(); // the other one is aborted all the same
      }
    }
    if (failure) std::rethrow_exception(failure);
  });
}

// Applies to operations that are called from now on. ProcessGroupWrapper does not forward this call, so it goes to the backends
// themselves.
Status lc_group_set_timeout(const GroupHandle* group, int64_t timeout_ms) noexcept {
  return guard([&] {
    for (const auto& backend : group->guarded) backend->setTimeout(std::chrono::milliseconds(timeout_ms));
  });
}

// ---- collectives; `op` is a c10d::ReduceOp::RedOpType

Status lc_broadcast(GroupHandle* g, at::Tensor* tensor, int64_t root, int64_t timeout_ms, WorkHandle** out) noexcept {
  return start(out, [&] {
    std::vector<at::Tensor> tensors{numbers(*tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = to_timeout(timeout_ms);
    return g->group->broadcast(tensors, options);
  });
}

Status lc_all_reduce(GroupHandle* g, at::Tensor* tensor, uint8_t op, int64_t timeout_ms, WorkHandle** out) noexcept {
  return start(out, [&] {
    std::vector<at::Tensor> tensors{numbers(*tensor)};
    c10d::AllreduceOptions options;
    options.reduceOp = static_cast<c10d::ReduceOp::RedOpType>(op);
    options.timeout = to_timeout(timeout_ms);
    return g->group->allreduce(tensors, options);
  });
}

// The sum of sparse tensors. Returns when it has replaced the tensor's indices and values.
Status lc_all_reduce_sparse(GroupHandle* g, const at::Tensor* tensor, int64_t timeout_ms) noexcept {
  return guard([&] {
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> sum{tensor->detach().clone()};
    c10d::AllreduceOptions options;
    options.timeout = to_timeout(timeout_ms);
    g->group->allreduce(sum, options)->wait();
    tensor->copy_(sum[0]);
  });
}

Status lc_reduce(GroupHandle* g, at::Tensor* tensor, int64_t root, uint8_t op, int64_t timeout_ms,
                 WorkHandle** out) noexcept {
  return start(out, [&] {
    std::vector<at::Tensor> tensors{numbers(*tensor)};
    c10d::ReduceOptions options;
    options.reduceOp = static_cast<c10d::ReduceOp::RedOpType>(op);
    options.rootRank = root;
    options.timeout = to_timeout(timeout_ms);
    return g->group->reduce(tensors, options);
  });
}

Status lc_all_gather(GroupHandle* g, const at::Tensor* const* outputs, size_t n, const at::Tensor* input,
                     int64_t timeout_ms, WorkHandle** out) noexcept {
  return start(out, [&] {
    std::vector<std::vector<at::Tensor>> lists{numbers(outputs, n)};
    std::vector<at::Tensor> inputs{numbers(*input)};
    c10d::AllgatherOptions options;
    options.timeout = to_timeout(timeout_ms);
    return g->group->allgather(lists, inputs, options);
  });
}

Status lc_all_gather_into_tensor(GroupHandle* g, at::Tensor* output, at::Tensor* input, int64_t timeout_ms,
                                 WorkHandle** out) noexcept {
  return start(out, [&] {
    c10d::AllgatherOptions options;
    options.timeout = to_timeout(timeout_ms);
    auto to = numbers(*output), from = numbers(*input);
    return g->group->_allgather_base(to, from, options);
  });
}

// On the root `outputs` has one tensor per rank; elsewhere n is 0.
Status lc_gather(GroupHandle* g, const at::Tensor* const* outputs, size_t n, const at::Tensor* input, int64_t root,
                 int64_t timeout_ms, WorkHandle** out) noexcept {
  return start(out, [&] {
    std::vector<std::vector<at::Tensor>> lists;
    if (n != 0) lists.push_back(numbers(outputs, n));
    std::vector<at::Tensor> inputs{numbers(*input)};
    c10d::GatherOptions options;
    options.rootRank = root;
    options.timeout = to_timeout(timeout_ms);
    return g->group->gather(lists, inputs, options);
  });
}

// On the root `inputs` has one tensor per rank; elsewhere n is 0.
Status lc_scatter(GroupHandle* g, const at::Tensor* output, const at::Tensor* const* inputs, size_t n, int64_t root,
                  int64_t timeout_ms, WorkHandle** out) noexcept {
  return start(out, [&] {
    std::vector<at::Tensor> outputs{numbers(*output)};
    std::vector<std::vector<at::Tensor>> lists;
    if (n != 0) lists.push_back(numbers(inputs, n));
    c10d::ScatterOptions options;
    options.rootRank = root;
    options.timeout = to_timeout(timeout_ms);
    return g->group->scatter(outputs, lists, options);
  });
}

Status lc_reduce_scatter(GroupHandle* g, const at::Tensor* output, const at::Tensor* const* inputs, size_t n, uint8_t op,
                         int64_t timeout_ms, WorkHandle** out) noexcept {
  return start(out, [&] {
    std::vector<at::Tensor> outputs{numbers(*output)};
    std::vector<std::vector<at::Tensor>> lists{numbers(inputs, n)};
    c10d::ReduceScatterOptions options;
    options.reduceOp = static_cast<c10d::ReduceOp::RedOpType>(op);
    options.timeout = to_timeout(timeout_ms);
    return g->group->reduce_scatter(outputs, lists, options);
  });
}

Status lc_reduce_scatter_tensor(GroupHandle* g, at::Tensor* output, at::Tensor* input, uint8_t op, int64_t timeout_ms,
                                WorkHandle** out) noexcept {
  return start(out, [&] {
    c10d::ReduceScatterOptions options;
    options.reduceOp = static_cast<c10d::ReduceOp::RedOpType>(op);
    options.timeout = to_timeout(timeout_ms);
    auto to = numbers(*output), from = numbers(*input);
    return g->group->_reduce_scatter_base(to, from, options);
  });
}

// Empty split lists mean equal parts of dimension 0.
Status lc_all_to_all_single(GroupHandle* g, at::Tensor* output, at::Tensor* input, const int64_t* output_splits,
                            size_t n_output, const int64_t* input_splits, size_t n_input, int64_t timeout_ms,
                            WorkHandle** out) noexcept {
  return start(out, [&] {
    std::vector<int64_t> outputs(output_splits, output_splits + n_output);
    std::vector<int64_t> inputs(input_splits, input_splits + n_input);
    c10d::AllToAllOptions options;
    options.timeout = to_timeout(timeout_ms);
    auto to = numbers(*output), from = numbers(*input);
    return g->group->alltoall_base(to, from, outputs, inputs, options);
  });
}

// This does not call ProcessGroup::barrier (2.11): its tensor is a static variable, and ranks that are threads of one
// process would all write it at the same time. It makes the same call to the backend, or to the wrapper that compares calls.
Status lc_barrier(GroupHandle* g, int64_t timeout_ms, WorkHandle** out) noexcept {
  return start(out, [&] {
    c10d::BarrierOptions options;
    options.timeout = to_timeout(timeout_ms);
    options.device = g->group->getBoundDeviceId();
    return g->group->getBackend(g->device)->barrier(options);
  });
}

Status lc_monitored_barrier(GroupHandle* g, int64_t timeout_ms, bool wait_all_ranks) noexcept {
  return guard([&] {
    c10d::BarrierOptions options;
    options.timeout = to_timeout(timeout_ms);
    g->group->monitoredBarrier(options, wait_all_ranks);
  });
}

// ---- point to point

Status lc_send(GroupHandle* g, at::Tensor* tensor, int32_t peer, int32_t tag, WorkHandle** out) noexcept {
  return start(out, [&] {
    std::vector<at::Tensor> tensors{numbers(*tensor)};
    return g->group->send(tensors, peer, tag);
  });
}

// A negative peer receives from any rank.
Status lc_recv(GroupHandle* g, at::Tensor* tensor, int32_t peer, int32_t tag, WorkHandle** out) noexcept {
  return start(out, [&] {
    std::vector<at::Tensor> tensors{numbers(*tensor)};
    return peer < 0 ? g->group->recvAnysource(tensors, tag) : g->group->recv(tensors, peer, tag);
  });
}

// Sends and receives messages together, as NCCL requires: one after the other, they could wait for each other. All messages
// share one work, and each gets a handle to it.
Status lc_batch(GroupHandle* g, const Message* messages, size_t n, WorkHandle** works) noexcept {
  return guard([&] {
    const auto device = messages[0].tensor->device().type();
    g->group->startCoalescing(device);
    try {
      for (const auto* message = messages; message != messages + n; ++message) {
        std::vector<at::Tensor> tensors{numbers(*message->tensor)};
        if (message->sends) g->group->send(tensors, message->peer, message->tag);
        else g->group->recv(tensors, message->peer, message->tag);
      }
    } catch (...) {
      g->group->endCoalescing(device);
      throw;
    }
    const auto work = g->group->endCoalescing(device);
    TORCH_CHECK(work, "the backend returned no work handle");
    for (size_t i = 0; i < n; ++i) works[i] = new WorkHandle{work};
  });
}

// ---- work

// With timeout 0, the operation's own timeout limits the wait.
Status lc_work_wait(WorkHandle* work, int64_t timeout_ms) noexcept {
  return guard([&] {
    const bool finished = work->work->wait(std::chrono::milliseconds(timeout_ms));
    TORCH_CHECK(finished, "the operation was aborted");
  });
}

Status lc_work_is_completed(WorkHandle* work, bool* out) noexcept {
  return guard([&] { *out = work->work->isCompleted(); });
}

Status lc_work_source_rank(const WorkHandle* work, int32_t* out) noexcept {
  return guard([&] { *out = work->work->sourceRank(); });
}

void lc_work_free(WorkHandle* work) noexcept {
  (void)guard([&] { delete work; });
}

} // extern "C"
