// Stores, and the byte strings that they return.

#include "shim.hpp"

#include <cerrno>
#include <cstdlib>

#include <fcntl.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

using namespace shim;

namespace {

// c10d's FileStore writes to its file when it is destroyed. If the file system is full, it throws from its destructor,
// which ends the process. This class reserves the room first. If that fails, it leaves the file unchanged: without a
// path the destructor does nothing.
struct FileStore : c10d::FileStore {
  FileStore(const std::string& path, int workers) : c10d::FileStore(path, workers) {}

  ~FileStore() override {
    if (!has_room()) path_.clear();
  }

  c10::intrusive_ptr<c10d::Store> clone() override { return c10::make_intrusive<FileStore>(path_, numWorkers_); }

 private:
  // Enough for two short entries, and for those of other ranks at the same time.
  static constexpr off_t kRoom = 16 * 1024;

  bool has_room() const noexcept {
    const int file = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) return false;
    const off_t end = ::lseek(file, 0, SEEK_END);
    const int failed = ::fallocate(file, FALLOC_FL_KEEP_SIZE, end, kRoom) == 0 ? 0 : errno;
    ::close(file);
    return failed == 0 || failed == EOPNOTSUPP || failed == ENOSYS;
  }
};

} // namespace

extern "C" {

void lc_message_free(char* message) noexcept { std::free(message); }

size_t lc_blobs_len(const Blobs* blobs) noexcept { return blobs->items.size(); }

Bytes lc_blobs_at(const Blobs* blobs, size_t i) noexcept { return {blobs->items[i].data(), blobs->items[i].size()}; }

void lc_blobs_free(Blobs* blobs) noexcept { delete blobs; }

// ---- creating stores

Status lc_store_tcp(Bytes host, uint16_t port, bool is_server, int64_t world_size, bool wait_workers, bool multi_tenant,
                    int64_t timeout_ms, StoreHandle** out, uint16_t* bound_port) noexcept {
  return guard([&] {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = is_server;
    if (world_size >= 0) options.numWorkers = static_cast<size_t>(world_size);
    options.waitWorkers = wait_workers;
    options.multiTenant = multi_tenant;
    options.timeout = std::chrono::milliseconds(timeout_ms);
    auto store = c10::make_intrusive<c10d::TCPStore>(to_string(host), options);
    *bound_port = store->getPort();
    *out = new StoreHandle{std::move(store)};
  });
}

Status lc_store_file(Bytes path, int32_t num_workers, int64_t timeout_ms, StoreHandle** out) noexcept {
  return guard([&] {
    auto store = c10::make_intrusive<FileStore>(to_string(path), num_workers);
    store->setTimeout(std::chrono::milliseconds(timeout_ms));
    *out = new StoreHandle{std::move(store)};
  });
}

Status lc_store_hash(int64_t timeout_ms, StoreHandle** out) noexcept {
  return guard([&] {
    auto store = c10::make_intrusive<c10d::HashStore>();
    store->setTimeout(std::chrono::milliseconds(timeout_ms));
    *out = new StoreHandle{std::move(store)};
  });
}

Status lc_store_prefix(Bytes prefix, const StoreHandle* base, StoreHandle** out) noexcept {
  return guard([&] { *out = new StoreHandle{c10::make_intrusive<c10d::PrefixStore>(to_string(prefix), base->store)}; });
}

// For stores with a connection (TCPStore), a handle with its own connection; otherwise the same store again.
Status lc_store_clone(const StoreHandle* store, StoreHandle** out) noexcept {
  return guard([&] { *out = new StoreHandle{store->store->clone()}; });
}

void lc_store_free(StoreHandle* store) noexcept {
  (void)guard([&] { delete store; });
}

// ---- operations

Status lc_store_set(const StoreHandle* store, Bytes key, Bytes value) noexcept {
  return guard([&] { store->store->set(to_string(key), to_vector(value)); });
}

Status lc_store_get(const StoreHandle* store, Bytes key, Blobs** out) noexcept {
  return guard([&] { *out = new Blobs{{store->store->get(to_string(key))}}; });
}

Status lc_store_add(const StoreHandle* store, Bytes key, int64_t delta, int64_t* out) noexcept {
  return guard([&] { *out = store->store->add(to_string(key), delta); });
}

Status lc_store_wait(const StoreHandle* store, const Bytes* keys, size_t n, int64_t timeout_ms) noexcept {
  return guard([&] { store->store->wait(to_strings(keys, n), std::chrono::milliseconds(timeout_ms)); });
}

Status lc_store_check(const StoreHandle* store, const Bytes* keys, size_t n, bool* out) noexcept {
  return guard([&] { *out = store->store->check(to_strings(keys, n)); });
}

Status lc_store_compare_set(const StoreHandle* store, Bytes key, Bytes expected, Bytes desired, Blobs** out) noexcept {
  return guard([&] {
    *out = new Blobs{{store->store->compareSet(to_string(key), to_vector(expected), to_vector(desired))}};
  });
}

Status lc_store_delete(const StoreHandle* store, Bytes key, bool* out) noexcept {
  return guard([&] { *out = store->store->deleteKey(to_string(key)); });
}

Status lc_store_append(const StoreHandle* store, Bytes key, Bytes value) noexcept {
  return guard([&] { store->store->append(to_string(key), to_vector(value)); });
}

Status lc_store_multi_get(const StoreHandle* store, const Bytes* keys, size_t n, Blobs** out) noexcept {
  return guard([&] { *out = new Blobs{store->store->multiGet(to_strings(keys, n))}; });
}

Status lc_store_multi_set(const StoreHandle* store, const Bytes* keys, const Bytes* values, size_t n) noexcept {
  return guard([&] {
    std::vector<std::vector<uint8_t>> items;
    items.reserve(n);
    for (size_t i = 0; i < n; ++i) items.push_back(to_vector(values[i]));
    store->store->multiSet(to_strings(keys, n), items);
  });
}

Status lc_store_num_keys(const StoreHandle* store, int64_t* out) noexcept {
  return guard([&] { *out = store->store->getNumKeys(); });
}

Status lc_store_list_keys(const StoreHandle* store, Blobs** out) noexcept {
  return guard([&] {
    auto keys = std::make_unique<Blobs>();
    for (const auto& key : store->store->listKeys()) keys->items.emplace_back(key.begin(), key.end());
    *out = keys.release();
  });
}

Status lc_store_queue_push(const StoreHandle* store, Bytes key, Bytes value) noexcept {
  return guard([&] { store->store->queuePush(to_string(key), to_vector(value)); });
}

Status lc_store_queue_pop(const StoreHandle* store, Bytes key, bool block, Blobs** out) noexcept {
  return guard([&] { *out = new Blobs{{store->store->queuePop(to_string(key), block)}}; });
}

Status lc_store_queue_len(const StoreHandle* store, Bytes key, int64_t* out) noexcept {
  return guard([&] { *out = store->store->queueLen(to_string(key)); });
}

Status lc_store_set_timeout(const StoreHandle* store, int64_t timeout_ms) noexcept {
  return guard([&] { store->store->setTimeout(std::chrono::milliseconds(timeout_ms)); });
}

int64_t lc_store_timeout_ms(const StoreHandle* store) noexcept { return store->store->getTimeout().count(); }

} // extern "C"
