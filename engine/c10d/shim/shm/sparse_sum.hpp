// The arithmetic of sparse tensors' sums. Not here: when each step is exchanged (backend.cpp, the only file that includes
// this one).
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "members.hpp"

namespace {

// The sum of all ranks' sparse tensors, as ProcessGroupGloo computes it: every rank gathers the sizes of all, then their
// indices, then their values, and adds them up in rank order.
class SparseSum {
 public:
  SparseSum(const at::Tensor& tensor, int size)
      : input_(tensor.coalesce()),
        output_(tensor),
        mine_(at::full({kFacts}, -1, at::kLong)),
        facts_(at::empty({size, kFacts}, at::kLong)) {
    TORCH_CHECK_VALUE(tensor.dim() <= kDims, "shared memory does not support sparse tensors of ", tensor.dim(), " dimensions");
    auto* facts = mine_.mutable_data_ptr<int64_t>();
    std::copy(tensor.sizes().begin(), tensor.sizes().end(), facts);
    facts[kDims] = input_.sparse_dim();
    facts[kDims + 1] = input_._nnz();
  }

  // The tensor that this rank gives in each of the three steps, and the tensors that receive those of all ranks.
  std::pair<at::Tensor, std::vector<at::Tensor>> step(int number) {
    if (number == 0) return {mine_, facts_.unbind()};
    if (number == 1) {
      check_sizes();
      for (int rank = 0; rank < facts_.size(0); ++rank) indices_.push_back(at::empty({input_.sparse_dim(), count(rank)}, at::kLong));
      return {input_.indices().contiguous(), indices_};
    }
    for (int rank = 0; rank < facts_.size(0); ++rank) {
      auto sizes = input_.sizes().slice(input_.sparse_dim()).vec();
      sizes.insert(sizes.begin(), count(rank));
      values_.push_back(at::empty(sizes, input_.values().options()));
    }
    return {input_.values().contiguous(), values_};
  }

  void finish() {
    const at::NoGradGuard no_grad;
    const auto of = [&](size_t rank) {
      return at::sparse_coo_tensor(indices_[rank], values_[rank], input_.sizes(), input_.options());
    };
    auto sum = of(0);
    for (size_t rank = 1; rank < indices_.size(); ++rank) sum += of(rank);
    output_.copy_(sum.coalesce());
  }

 private:
  // For each rank: the sizes, filled up with -1; the number of sparse dimensions; the number of elements.
  static constexpr int64_t kDims = 8, kFacts = kDims + 2;

  const int64_t* facts(int64_t rank) const { return facts_.const_data_ptr<int64_t>() + rank * kFacts; }
  int64_t count(int64_t rank) const { return facts(rank)[kDims + 1]; }

  void check_sizes() const {
    std::vector<std::pair<int, std::string>> sizes;
    bool differ = false;
    for (int64_t rank = 0; rank < facts_.size(0); ++rank) {
      differ |= !std::equal(facts(rank), facts(rank) + kDims + 1, facts(0));
      const auto dims = std::find(facts(rank), facts(rank) + kDims, -1);
      const auto text = c10::str("sparse ", at::IntArrayRef(facts(rank), dims), ", ", facts(rank)[kDims], " of the dimensions sparse");
      sizes.emplace_back(static_cast<int>(rank), text);
    }
    if (differ) throw shm::Mismatch("Detected mismatch between collectives. " + shm::group_ranks(sizes));
  }

  const at::Tensor input_, output_, mine_, facts_;
  std::vector<at::Tensor> indices_, values_;
};

} // namespace
