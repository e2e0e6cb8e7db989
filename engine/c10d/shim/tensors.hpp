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

// A tensor's values without its graph. An operation in progress keeps its tensors, and the thread that finishes it releases
// them. A graph may hold the last reference to the group, whose destructor waits for that thread.
inline at::Tensor numbers(const at::Tensor& tensor) { return tensor.detach(); }

inline std::vector<at::Tensor> numbers(const at::Tensor* const* tensors, size_t n) {
  auto out = to_tensors(tensors, n);
  for (auto& tensor : out) tensor = numbers(tensor);
  return out;
}

// The bytes of a tensor's values, with the indices of a sparse one.
inline size_t bytes_of(const at::Tensor& tensor) {
  return tensor.is_sparse() ? tensor._indices().nbytes() + tensor._values().nbytes() : tensor.nbytes();
}

} // namespace shim
