// The C boundary between libtorch's c10d and Rust. Every function is noexcept and catches all exceptions; those that
// can fail return a Status by value. Ownership: a `T** out` receives a pointer that the caller frees with the `_free`
// function of that type; every other pointer is borrowed for the call.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "status.hpp"
#include "tensors.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace shim {

// A slice of bytes that is borrowed from the caller.
struct Bytes {
  const uint8_t* data;
  size_t size;
};

struct StoreHandle {
  c10::intrusive_ptr<c10d::Store> store;
};

// The configuration of one member of a group, from which every backend is created.
struct MemberConfig {
  const StoreHandle* store; // the backend's own prefix store
  Bytes group_name;
  int32_t rank;
  int32_t size;
  const uint64_t* global_ranks; // `size` of them, in group order
  int64_t timeout_ms;

  std::vector<uint64_t> members() const { return {global_ranks, global_ranks + size}; }
};

// The operations of a rank in its group and their bytes, from every caller: a reducer calls from autograd's threads. All accesses are
// relaxed, because these are numbers for reports and publish nothing else.
struct Traffic {
  std::atomic<uint64_t> calls{0};
  std::atomic<uint64_t> bytes{0};
  std::atomic<int64_t> last{0}; // when the last one was called

  void add(size_t n) {
    calls.fetch_add(1, std::memory_order_relaxed);
    bytes.fetch_add(n, std::memory_order_relaxed);
    last.store(now(), std::memory_order_relaxed);
  }

  // In nanoseconds.
  int64_t since_last() const { return now() - last.load(std::memory_order_relaxed); }

 private:
  static int64_t now() {
    const auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
  }
};

struct BackendHandle {
  c10::intrusive_ptr<c10d::Backend> backend;
  c10d::ProcessGroup::BackendType type;
  std::optional<c10::Device> bound; // the only device that it works on, if there is one
  c10::intrusive_ptr<c10d::Backend> wrapper; // what the group calls instead
  std::shared_ptr<Traffic> traffic; // null if it is not counted
  c10::intrusive_ptr<c10d::Backend> guarded; // the guard of guarded.cpp, if there is one: also below another wrapper
};

struct GroupHandle {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  c10::intrusive_ptr<c10d::Backend> backend; // the default one
  c10::DeviceType device; // the device of the default backend's tensors
  std::shared_ptr<Traffic> traffic;
  c10::intrusive_ptr<c10d::Backend> other; // the backend of the other device; null if there is none
  std::vector<c10::intrusive_ptr<c10d::Backend>> guarded; // each backend, or its guard of guarded.cpp
};

struct WorkHandle {
  c10::intrusive_ptr<c10d::Work> work;
};

// A weak reference to the memory of tensors.
struct StorageHandle {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
};

inline StorageHandle* to_storage(const at::Tensor& tensor, uint64_t* id) {
  *id = reinterpret_cast<uint64_t>(tensor.storage().unsafeGetStorageImpl());
  return new StorageHandle{tensor.storage().getWeakStorageImpl()};
}

// Byte strings that belong to the caller, who frees them with lc_blobs_free.
struct Blobs {
  std::vector<std::vector<uint8_t>> items;
};

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

// A negative number means the backend's own default, like c10d's kUnsetTimeout.
inline std::chrono::milliseconds to_timeout(int64_t ms) {
  return ms < 0 ? c10d::kUnsetTimeout : std::chrono::milliseconds(ms);
}

} // namespace shim
