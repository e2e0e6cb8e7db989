// The properties of a tensor that src/tensors.rs checks before a backend gets its address.

#include "status.hpp"

#include <ATen/core/Tensor.h>
#include <c10/core/Layout.h>

using namespace shim;

namespace {

struct TensorFacts {
  bool defined;
  bool strided;    // and not a list of tensors
  bool in_storage; // its memory holds its values, all of them and as they are
  bool contiguous;
  int32_t kind; // c10::ScalarType
  int32_t device_type; // c10::DeviceType
  int32_t device_index;
  int64_t item_size;
  int64_t numel;
  uint64_t address;
};

bool holds_all(const at::Tensor& t) {
  if (!t.has_storage() || t.is_conj() || t.is_neg() || t._is_zerotensor()) return false;
  const auto last = static_cast<size_t>(t.storage_offset() + t.numel()) * t.itemsize();
  return t.numel() == 0 || !t.is_contiguous() || last <= t.storage().nbytes();
}

} // namespace

extern "C" {

Status lc_tensor_facts(const at::Tensor* tensor, TensorFacts* out) noexcept {
  return guard([&] {
    const auto& t = *tensor;
    *out = {};
    if (!(out->defined = t.defined())) return;
    out->kind = static_cast<int32_t>(t.scalar_type());
    out->device_type = static_cast<int32_t>(t.device().type());
    out->device_index = t.device().index();
    out->item_size = static_cast<int64_t>(t.itemsize());
    if (!(out->strided = t.layout() == at::kStrided && !t.is_nested())) return;
    out->numel = t.numel();
    if (!(out->in_storage = holds_all(t))) return;
    out->contiguous = t.is_contiguous();
    out->address = reinterpret_cast<uint64_t>(t.const_data_ptr());
  });
}

} // extern "C"
