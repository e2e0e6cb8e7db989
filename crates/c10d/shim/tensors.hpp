// Conversion of lists of tensors at the boundary.
#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>

namespace shim {

// tch's C_tensor is an at::Tensor.
inline std::vector<at::Tensor> to_tensors(const at::Tensor* const* tensors, size_t n) {
  std::vector<at::Tensor> out;
  out.reserve(n);
  for (size_t i = 0; i < n; ++i) out.push_back(*tensors[i]);
  return out;
}

} // namespace shim
