// Process groups on Gloo, their collectives and point-to-point messages, and work handles.

#include "shim.hpp"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupWrapper.hpp>
#include <torch/csrc/distributed/c10d/debug.h>

using namespace shim;
using c10d::ProcessGroup;
using c10d::ProcessGroupGloo;

namespace {

c10::intrusive_ptr<ProcessGroupGloo::Options> gloo_options(Bytes interface, Bytes host, int64_t timeout_ms) {
  const auto timeout = std::chrono::milliseconds(timeout_ms);
  if (interface.size == 0 && host.size == 0) return ProcessGroupGloo::Options::create_default(timeout);
  auto options = ProcessGroupGloo::Options::create(timeout);
  const bool lazy = c10d::getDefaultGlooLazyInit();
  options->devices.push_back(
      interface.size != 0 ? ProcessGroupGloo::createDeviceForInterface(to_string(interface), lazy)
                          : ProcessGroupGloo::createDeviceForHostname(to_string(host), lazy));
  return options;
}

// Runs a collective and hands its work to the caller.
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

Status lc_group_new(const StoreHandle* store, int32_t rank, int32_t size, GroupHandle** out) noexcept {
  return guard([&] { *out = new GroupHandle{c10::make_intrusive<ProcessGroup>(store->store, rank, size)}; });
}

// Gives the group a Gloo backend for CPU and CUDA tensors. `store` is the backend's own prefix store. With `detail`, the
// backend is wrapped as torch.distributed wraps it under TORCH_DISTRIBUTED_DEBUG=DETAIL, and under the same store prefix.
Status lc_group_add_gloo(GroupHandle* group, const StoreHandle* store, Bytes name, Bytes interface, Bytes host,
                         int64_t timeout_ms, const uint64_t* global_ranks, size_t n_global_ranks, bool detail) noexcept {
  return guard([&] {
    auto& pg = group->group;
    auto options = gloo_options(interface, host, timeout_ms);
    options->group_name = to_string(name);
    options->global_ranks_in_group.assign(global_ranks, global_ranks + n_global_ranks);
    auto gloo = c10::make_intrusive<ProcessGroupGloo>(store->store, pg->getRank(), pg->getSize(), options);
    gloo->setSequenceNumberForGroup();
    c10::intrusive_ptr<c10d::Backend> backend = gloo;
    if (detail) {
      auto helper_store = c10::make_intrusive<c10d::PrefixStore>("pg_wrapper:" + to_string(name), store->store);
      auto helper = c10::make_intrusive<ProcessGroupGloo>(
          helper_store, pg->getRank(), pg->getSize(), gloo_options(interface, host, timeout_ms));
      backend = c10::make_intrusive<c10d::ProcessGroupWrapper>(gloo, helper);
    }
    pg->setDefaultBackend(ProcessGroup::BackendType::GLOO);
    for (auto device : {c10::DeviceType::CPU, c10::DeviceType::CUDA})
      pg->setBackend(device, ProcessGroup::BackendType::GLOO, backend);
    pg->setGroupName(to_string(name));
  });
}

void lc_group_free(GroupHandle* group) noexcept {
  (void)guard([&] { delete group; });
}

void lc_set_debug_level(int32_t level) noexcept { c10d::setDebugLevel(static_cast<c10d::DebugLevel>(level)); }

// ---- collectives; `op` is a c10d::ReduceOp::RedOpType

Status lc_broadcast(GroupHandle* g, at::Tensor* tensor, int64_t root, int64_t timeout_ms, WorkHandle** out) noexcept {
  return start(out, [&] {
    std::vector<at::Tensor> tensors{*tensor};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = to_timeout(timeout_ms);
    return g->group->broadcast(tensors, options);
  });
}

Status lc_all_reduce(GroupHandle* g, at::Tensor* tensor, uint8_t op, int64_t timeout_ms, WorkHandle** out) noexcept {
  return start(out, [&] {
    std::vector<at::Tensor> tensors{*tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = static_cast<c10d::ReduceOp::RedOpType>(op);
    options.timeout = to_timeout(timeout_ms);
    return g->group->allreduce(tensors, options);
  });
}

Status lc_reduce(GroupHandle* g, at::Tensor* tensor, int64_t root, uint8_t op, int64_t timeout_ms,
                 WorkHandle** out) noexcept {
  return start(out, [&] {
    std::vector<at::Tensor> tensors{*tensor};
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
    std::vector<std::vector<at::Tensor>> lists{to_tensors(outputs, n)};
    std::vector<at::Tensor> inputs{*input};
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
    return g->group->_allgather_base(*output, *input, options);
  });
}

// On the root `outputs` has one tensor a rank, elsewhere n is 0.
Status lc_gather(GroupHandle* g, const at::Tensor* const* outputs, size_t n, const at::Tensor* input, int64_t root,
                 int64_t timeout_ms, WorkHandle** out) noexcept {
  return start(out, [&] {
    std::vector<std::vector<at::Tensor>> lists;
    if (n != 0) lists.push_back(to_tensors(outputs, n));
    std::vector<at::Tensor> inputs{*input};
    c10d::GatherOptions options;
    options.rootRank = root;
    options.timeout = to_timeout(timeout_ms);
    return g->group->gather(lists, inputs, options);
  });
}

// On the root `inputs` has one tensor a rank, elsewhere n is 0.
Status lc_scatter(GroupHandle* g, const at::Tensor* output, const at::Tensor* const* inputs, size_t n, int64_t root,
                  int64_t timeout_ms, WorkHandle** out) noexcept {
  return start(out, [&] {
    std::vector<at::Tensor> outputs{*output};
    std::vector<std::vector<at::Tensor>> lists;
    if (n != 0) lists.push_back(to_tensors(inputs, n));
    c10d::ScatterOptions options;
    options.rootRank = root;
    options.timeout = to_timeout(timeout_ms);
    return g->group->scatter(outputs, lists, options);
  });
}

Status lc_reduce_scatter(GroupHandle* g, const at::Tensor* output, const at::Tensor* const* inputs, size_t n, uint8_t op,
                         int64_t timeout_ms, WorkHandle** out) noexcept {
  return start(out, [&] {
    std::vector<at::Tensor> outputs{*output};
    std::vector<std::vector<at::Tensor>> lists{to_tensors(inputs, n)};
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
    return g->group->_reduce_scatter_base(*output, *input, options);
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
    return g->group->alltoall_base(*output, *input, outputs, inputs, options);
  });
}

Status lc_barrier(GroupHandle* g, int64_t timeout_ms, WorkHandle** out) noexcept {
  return start(out, [&] {
    c10d::BarrierOptions options;
    options.timeout = to_timeout(timeout_ms);
    return g->group->barrier(options);
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
    std::vector<at::Tensor> tensors{*tensor};
    return g->group->send(tensors, peer, tag);
  });
}

// A negative peer receives from any rank.
Status lc_recv(GroupHandle* g, at::Tensor* tensor, int32_t peer, int32_t tag, WorkHandle** out) noexcept {
  return start(out, [&] {
    std::vector<at::Tensor> tensors{*tensor};
    return peer < 0 ? g->group->recvAnysource(tensors, tag) : g->group->recv(tensors, peer, tag);
  });
}

// ---- work

// Timeout 0 waits as long as the operation's own timeout lets it.
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
