// What tch cannot ask of libtorch's kernels: determinism, memory with the channels last, page-locked memory, the peak of
// a GPU's memory, and the threads of one thread's operations.

#include "status.hpp"

#include <dlfcn.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/CachingDeviceAllocator.h>

using namespace shim;

extern "C" {

// torch.use_deterministic_algorithms(on), and cuDNN does not choose kernels by their times.
Status lc_use_deterministic_algorithms(bool on) noexcept {
  return guard([&] {
    at::globalContext().setDeterministicAlgorithms(on, /*warn_only=*/false);
    if (on) at::globalContext().setBenchmarkCuDNN(false);
  });
}

bool lc_is_channels_last(const at::Tensor* tensor) noexcept {
  bool is = false;
  (void)guard([&] { is = tensor->dim() == 4 && tensor->is_contiguous(at::MemoryFormat::ChannelsLast); });
  return is;
}

Status lc_channels_last(const at::Tensor* tensor, at::Tensor** out) noexcept {
  return guard([&] { *out = new at::Tensor(tensor->contiguous(at::MemoryFormat::ChannelsLast)); });
}

// In place, as torch.nn.Module.to(memory_format=...) does it: whoever has the tensor sees the new memory.
Status lc_to_channels_last(at::Tensor* tensor) noexcept {
  return guard([&] {
    at::NoGradGuard no_grad;
    tensor->set_data(tensor->contiguous(at::MemoryFormat::ChannelsLast));
  });
}

Status lc_pin_memory(const at::Tensor* tensor, at::Tensor** out) noexcept {
  return guard([&] { *out = new at::Tensor(tensor->pin_memory()); });
}

// at::set_num_threads(1) would hold for all threads that libtorch does not know yet. OpenMP and MKL have a number for each thread, and
// libtorch's copies of the two are the ones to tell.
Status lc_one_thread_here() noexcept {
  return guard([] {
    (void)at::get_num_threads(); // sets this thread's number if it is the first question
    void* library = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) return;
    using Set = void (*)(int);
    if (const auto set = reinterpret_cast<Set>(dlsym(library, "omp_set_num_threads"))) set(1);
    using SetLocal = int (*)(int);
    if (const auto set = reinterpret_cast<SetLocal>(dlsym(library, "MKL_Set_Num_Threads_Local"))) (void)set(1);
    dlclose(library);
  });
}

// Bytes of tensors on a GPU: the most at a time since the last reset.
Status lc_peak_memory(int32_t device, int64_t* bytes) noexcept {
  return guard([&] {
    const auto stats = c10::getDeviceAllocator(c10::DeviceType::CUDA)->getDeviceStats(static_cast<c10::DeviceIndex>(device));
    *bytes = stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)].peak;
  });
}

Status lc_reset_peak_memory(int32_t device) noexcept {
  return guard([&] { c10::getDeviceAllocator(c10::DeviceType::CUDA)->resetPeakStats(static_cast<c10::DeviceIndex>(device)); });
}

} // extern "C"
