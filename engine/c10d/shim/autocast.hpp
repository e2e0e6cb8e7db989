// Turns autocast on and off for a thread, and restores its earlier state.
#pragma once

#include <ATen/autocast_mode.h>

namespace shim {

struct AutocastState {
  int32_t dtype;
  bool enabled, cuda;
};

inline at::DeviceType autocast_device(bool cuda) { return cuda ? at::kCUDA : at::kCPU; }

inline AutocastState autocast_state(bool cuda) {
  const auto device = autocast_device(cuda);
  return {static_cast<int32_t>(at::autocast::get_autocast_dtype(device)), at::autocast::is_autocast_enabled(device), cuda};
}

inline void set_autocast(const AutocastState& state) {
  const auto device = autocast_device(state.cuda);
  at::autocast::set_autocast_dtype(device, static_cast<at::ScalarType>(state.dtype));
  at::autocast::set_autocast_enabled(device, state.enabled);
}

// Returns the previous state.
inline AutocastState enter_autocast(const AutocastState& state) {
  const auto before = autocast_state(state.cuda);
  set_autocast(state);
  at::autocast::increment_nesting();
  return before;
}

// Leaving the outermost autocast drops its copies of weights, which would be out of date after a step.
inline void leave_autocast(const AutocastState& before) {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  set_autocast(before);
}

} // namespace shim
