// NCCL for process groups: the one part of the shim that needs libtorch_cuda.so, so it is a library of its own (src/nccl.rs).

#include "shim.hpp"

#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

using namespace shim;
using c10d::ProcessGroupNCCL;

// For tensors on one CUDA device, which becomes the calling thread's current one, as torch.cuda.set_device makes it.
// The communicators are made by the first operation, as after init_process_group("nccl").
extern "C" Status lc_backend_nccl(const Seat* seat, int32_t device, BackendHandle** out) noexcept {
  return guard([&] {
    const c10::Device cuda(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device));
    c10::cuda::set_device(cuda.index());
    auto options = ProcessGroupNCCL::Options::create();
    options->timeout = std::chrono::milliseconds(seat->timeout_ms);
    options->group_name = to_string(seat->group_name);
    options->global_ranks_in_group = seat->members();
    auto nccl = c10::make_intrusive<ProcessGroupNCCL>(seat->store->store, seat->rank, seat->size, options);
    nccl->setSequenceNumberForGroup();
    nccl->setBoundDeviceId(cuda);
    *out = new BackendHandle{nccl, c10d::ProcessGroup::BackendType::NCCL, {cuda.type()}, cuda, {}};
  });
}
