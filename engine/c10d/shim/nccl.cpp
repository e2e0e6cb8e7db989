// NCCL for process groups: the only part of the shim that needs libtorch_cuda.so, so it is a separate library
// (src/nccl.rs).

#include "shim.hpp"

#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

using namespace shim;
using c10d::ProcessGroupNCCL;

// For tensors on one CUDA device, which becomes the current device of the calling thread, as with
// torch.cuda.set_device. The first operation creates the communicators, as after init_process_group("nccl").
extern "C" Status lc_backend_nccl(const MemberConfig* config, int32_t device, BackendHandle** out) noexcept {
  return guard([&] {
    const c10::Device cuda(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device));
    c10::cuda::set_device(cuda.index());
    auto options = ProcessGroupNCCL::Options::create();
    options->timeout = std::chrono::milliseconds(config->timeout_ms);
    options->group_name = to_string(config->group_name);
    options->global_ranks_in_group = config->members();
    auto nccl = c10::make_intrusive<ProcessGroupNCCL>(config->store->store, config->rank, config->size, options);
    nccl->setSequenceNumberForGroup();
    nccl->setBoundDeviceId(cuda);
    *out = new BackendHandle{nccl, c10d::ProcessGroup::BackendType::NCCL, cuda, {}, {}, {}};
  });
}
