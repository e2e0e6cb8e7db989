// What tch cannot ask of libtorch's kernels: determinism, memory with the channels last, page-locked memory, and the peak of a device's memory.

#include "status.hpp"

#include <ATen/Context.h>
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
