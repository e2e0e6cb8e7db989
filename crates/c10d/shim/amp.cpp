// Mixed precision: autocast for a thread, and the kernel that unscales gradients, which tch's generator skips.

#include "autocast.hpp"
#include "status.hpp"
#include "tensors.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>

using namespace shim;

extern "C" {

Status lc_autocast_enter(bool cuda, bool half, bool enabled, AutocastState* before) noexcept {
  return guard([&] {
    *before = enter_autocast({static_cast<int32_t>(half ? at::kHalf : at::kBFloat16), enabled, cuda});
  });
}

Status lc_autocast_leave(const AutocastState* before) noexcept {
  return guard([&] { leave_autocast(*before); });
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
