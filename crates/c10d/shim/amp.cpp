// Mixed precision: autocast for a thread, and the kernel that unscales gradients, which tch's generator skips.

#include "status.hpp"
#include "tensors.hpp"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>

using namespace shim;

namespace {

// What `lc_autocast_leave` restores.
struct AutocastBefore {
  int32_t dtype;
  bool enabled, cuda;
};

at::DeviceType autocast_device(bool cuda) { return cuda ? at::kCUDA : at::kCPU; }

} // namespace

extern "C" {

Status lc_autocast_enter(bool cuda, bool half, bool enabled, AutocastBefore* before) noexcept {
  return guard([&] {
    const auto device = autocast_device(cuda);
    *before = {static_cast<int32_t>(at::autocast::get_autocast_dtype(device)),
               at::autocast::is_autocast_enabled(device), cuda};
    at::autocast::set_autocast_dtype(device, half ? at::kHalf : at::kBFloat16);
    at::autocast::set_autocast_enabled(device, enabled);
    at::autocast::increment_nesting();
  });
}

// The outermost one drops the copies of weights that autocast made: they would be out of date after a step.
Status lc_autocast_leave(const AutocastBefore* before) noexcept {
  return guard([&] {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    const auto device = autocast_device(before->cuda);
    at::autocast::set_autocast_dtype(device, static_cast<at::ScalarType>(before->dtype));
    at::autocast::set_autocast_enabled(device, before->enabled);
  });
}

// Multiplies the gradients by `inverse_scale` in place, and sets `found_inf` to 1 if one of them is not finite. The gradients have
// one dtype, and one device with the two others, which are one float each.
Status lc_unscale(const at::Tensor* const* grads, size_t n, const at::Tensor* found_inf,
                  const at::Tensor* inverse_scale) noexcept {
  return guard([&] {
    at::NoGradGuard no_grad;
    const auto g = to_tensors(grads, n);
    check_dense(g, "gradient");
    check_apart(g, {*inverse_scale});
    at::Tensor found = *found_inf;
    at::_amp_foreach_non_finite_check_and_unscale_(g, found, *inverse_scale);
  });
}

} // extern "C"
