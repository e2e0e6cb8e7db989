// The C boundary between libtorch's c10d and the Rust side: every function here is noexcept, catches everything and returns
// a Status by value. Ownership: a `T** out` receives a pointer that the caller frees with the `_free` function of that type;
// every other pointer is borrowed for the length of the call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace shim {

// What kind of exception was caught; src/error.rs knows the same numbers.
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

// A run of bytes that the caller lends.
struct Bytes {
  const uint8_t* data;
  size_t size;
};

struct StoreHandle {
  c10::intrusive_ptr<c10d::Store> store;
};

struct GroupHandle {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
};

struct WorkHandle {
  c10::intrusive_ptr<c10d::Work> work;
};

// Byte strings that the callee made: lc_blobs_free.
struct Blobs {
  std::vector<std::vector<uint8_t>> items;
};

// Turns the exception in flight into a status.
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

inline std::string to_string(Bytes bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data), bytes.size);
}

inline std::vector<uint8_t> to_vector(Bytes bytes) {
  return std::vector<uint8_t>(bytes.data, bytes.data + bytes.size);
}

inline std::vector<std::string> to_strings(const Bytes* keys, size_t n) {
  std::vector<std::string> out;
  out.reserve(n);
  for (size_t i = 0; i < n; ++i) out.push_back(to_string(keys[i]));
  return out;
}

// tch's C_tensor is an at::Tensor.
inline std::vector<at::Tensor> to_tensors(const at::Tensor* const* tensors, size_t n) {
  std::vector<at::Tensor> out;
  out.reserve(n);
  for (size_t i = 0; i < n; ++i) out.push_back(*tensors[i]);
  return out;
}

// A negative number means "the backend's own default", as c10d's kUnsetTimeout does.
inline std::chrono::milliseconds to_timeout(int64_t ms) {
  return ms < 0 ? c10d::kUnsetTimeout : std::chrono::milliseconds(ms);
}

} // namespace shim
