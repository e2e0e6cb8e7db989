// The result of a call. Separate from shim.hpp, whose headers take seconds to compile.
#pragma once

#include <cstdint>

namespace shim {

// The class of a caught exception; src/ffi.rs uses the same numbers.
enum class Kind : int32_t {
  Ok = 0,
  Timeout = 1,
  Network = 2,
  Store = 3,
  Argument = 4,
  Other = 5,
};

struct Status {
  Kind kind;
  char* message; // null when Ok, else owned by the caller: lc_message_free
};

// Converts the current exception to a status.
Status current_exception() noexcept;

template <class F>
Status guard(F&& body) noexcept {
  try {
    body();
    return {Kind::Ok, nullptr};
  } catch (...) {
    return current_exception();
  }
}

} // namespace shim
